import type { Config } from '../config.ts'
import type { PlanName } from '../users/plans.ts'

/** On a single machine, its local user may receive webhooks on that machine, for example with `warren webhooks listen`. */
export const mayUseLoopback = (config: Pick<Config, 'localUser'>, plan: PlanName): boolean =>
  config.localUser && plan === 'local'
