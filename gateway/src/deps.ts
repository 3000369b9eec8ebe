/**
 * What every operation gets as its first argument. Types only, so that importing `Deps` never causes an import cycle.
 * create-deps.ts builds the object.
 */
import type { Log } from '@warren/kit/log'
import type { AppAddress } from './apps/address.ts'
import type { SignatureVerifier } from './auth/verifier.ts'
import type { Chains } from './chains/chains.ts'
import type { Config } from './config.ts'
import type { ControlPlane } from './control-plane/client.ts'
import type { Database, Db } from './db/connect.ts'
import type { GatewayAddress } from './http/address.ts'
import type { Metrics } from './observe/metrics.ts'
import type { SecretBox } from './projects/secret-box.ts'
import type { Settler } from './settlements/settler.ts'

export type Deps = {
  config: Config
  log: Log
  database: Database
  db: Db
  chains: Chains
  verifier: SignatureVerifier
  secretBox: SecretBox
  controlPlane: ControlPlane
  apps: AppAddress
  address: GatewayAddress
  /** Undefined without its key: then payments come as hashes of transactions only. */
  settler: Settler | undefined
  /** Authenticates offers of this gateway, which it does not store. */
  offerKey: string
  /** Names this process in claims. */
  processId: string
  metrics: Metrics
  now: () => Date
}
