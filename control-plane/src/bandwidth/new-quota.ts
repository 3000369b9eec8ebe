import { BANDWIDTH_UNMETERED } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { PlanName } from '../users/plans.ts'

/** The outbound traffic that is included with a new sandbox. Apps of the deployment gateway are not metered here. */
export const newQuota = ({ config }: Pick<Deps, 'config'>, plan: PlanName): number =>
  plan === 'internal' ? BANDWIDTH_UNMETERED : config.bandwidthQuotaBytes
