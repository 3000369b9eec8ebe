/** What every verb gets as its first argument: built once in main.ts and once per test. That is all the injection. */
import type { Log } from '@warren/kit/log'
import { createTokenStreams, type TokenStreams } from './access-tokens/streams.ts'
import type { Config } from './config.ts'
import type { Database, Db } from './db/connect.ts'
import { type Activity, createActivity } from './guest/activity.ts'
import { createHosts, type Hosts } from './hosts/hosts.ts'
import type { CredentialCache } from './http/credential-cache.ts'
import { createLoaders, type Loaders } from './loaders.ts'
import type { Metrics } from './observe/metrics.ts'

export type Deps = {
  config: Config
  log: Log
  database: Database
  db: Db
  loaders: Loaders
  credentials: CredentialCache
  tokenStreams: TokenStreams
  metrics: Metrics
  hosts: Hosts
  activity: Activity
  /** This process, among all that work on the same database. */
  processId: string
  now: () => Date
}

export function createDeps(
  parts: Omit<Deps, 'db' | 'loaders' | 'tokenStreams' | 'hosts' | 'activity' | 'now'> & { now?: () => Date },
): Deps {
  return {
    ...parts,
    db: parts.database.db,
    loaders: createLoaders(parts.database),
    tokenStreams: createTokenStreams(parts.database, parts.log),
    hosts: createHosts(parts.database),
    activity: createActivity(),
    now: parts.now ?? (() => new Date()),
  }
}
