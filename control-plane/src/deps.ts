/**
 * What every operation gets as its first argument. Types only: a module may import `Deps` without importing any of the
 * parts, so it never causes an import cycle. create-deps.ts builds the object.
 */
import type { Log } from '@warren/kit/log'
import type { OutboundGuard } from '@warren/kit/outbound/guard'
import type { TokenStreams } from './access-tokens/end-revoked.ts'
import type { AuditLog } from './audit/log.ts'
import type { Config } from './config.ts'
import type { Database, Db } from './db/connect.ts'
import type { Activity } from './guest/activity.ts'
import type { Hosts } from './hosts/hosts.ts'
import type { CredentialCache } from './http/credential-cache.ts'
import type { IngressAddress } from './ingress/address.ts'
import type { Loaders } from './loaders.ts'
import type { Metrics } from './observe/metrics.ts'
import type { Secrets } from './secrets/secrets.ts'

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
  ingressAddress: IngressAddress
  audit: AuditLog
  /** Decides to which hosts webhooks may be sent. */
  webhookTargets: OutboundGuard
  /** Decides to which hosts disks may connect. */
  diskTargets: OutboundGuard
  /** Encrypts what is stored in the database and must not be readable there. */
  secrets: Secrets
  /** Identifies this process among all that use the same database. */
  processId: string
  now: () => Date
}
