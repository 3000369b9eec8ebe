/** What a response to a request with an egress list adds: the rules that open less than they name. */
import { listEgressWarnings } from '@warren/protocol'
import type { Deps } from '../deps.ts'

export function egressWarnings({ config }: Deps, egress: readonly string[]): { warnings?: string[] } {
  const { guestHost: hostAddress, egressPrivateCidrs: privateCidrs } = config
  const warnings = listEgressWarnings(egress, { hostAddress, privateCidrs })
  return warnings.length === 0 ? {} : { warnings }
}
