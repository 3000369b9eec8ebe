import { isTerminal, SANDBOX_STATUSES, type Whoami } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'

const OTHER = SANDBOX_STATUSES.filter((status) => !isTerminal(status) && status !== 'running' && status !== 'paused')

export async function whoami(deps: Deps, caller: Caller): Promise<Whoami> {
  const counts = await deps.loaders.sandboxCounts(caller.user.id)
  const sum = (statuses: readonly (typeof SANDBOX_STATUSES)[number][]) =>
    statuses.reduce((total, status) => total + (counts?.[status] ?? 0), 0)
  return {
    user_id: caller.user.id,
    stats: { running: sum(['running']), paused: sum(['paused']), other: sum(OTHER), total: sum(SANDBOX_STATUSES) },
  }
}
