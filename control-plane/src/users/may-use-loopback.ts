import type { Config } from '../config.ts'
import type { PlanName } from './plans.ts'

/** On a single machine, its local user may name servers on that machine: receivers of webhooks, and stores of disks. */
export const mayUseLoopback = (config: Pick<Config, 'localUser'>, plan: PlanName): boolean =>
  config.localUser && plan === 'local'
