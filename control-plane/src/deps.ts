/** What every verb gets as its first argument: built once in main.ts and once per test. That is all the injection. */
import type { Log } from '@warren/kit/log'
import type { Config } from './config.ts'
import type { Database, Db } from './db/connect.ts'
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
  metrics: Metrics
  /** This process, among all that work on the same database. */
  processId: string
  now: () => Date
}

export function createDeps(parts: Omit<Deps, 'db' | 'loaders' | 'now'> & { now?: () => Date }): Deps {
  return {
    ...parts,
    db: parts.database.db,
    loaders: createLoaders(parts.database),
    now: parts.now ?? (() => new Date()),
  }
}
