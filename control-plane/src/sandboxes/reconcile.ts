/**
 * What hosts have against what the database says, every two seconds, in both directions:
 *
 *   a VM whose row has ended, or that has none        → the host deletes it, with a fence above the row's
 *   a row and a VM that do not agree                  → decide-repair.ts says what becomes of the row
 *   an ended row that still holds memory              → given back once the host does not list its VM
 *   a row whose operation no job works on             → gets its job (missing-jobs.ts)
 *   a host's promised memory against its rows         → mended, and logged: it is a bug if they ever differ
 *
 * A state is older than what is read after it, so what must have been true before is read before: a row counts as
 * without a VM only if it was settled before its host was asked, and nothing has begun since. A host that does not
 * answer says nothing.
 */
import { Failure } from '@warren/kit/failure'
import { type HostState, type HostVm, isTerminal } from '@warren/protocol'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { decideRepair, type Placed } from './decide-repair.ts'
import { addMissingJobs } from './missing-jobs.ts'
import { beginMove } from './move.ts'
import { addPauseJob } from './pause.ts'
import { releaseMemory, repairReservations, reserveMemoryUnchecked } from './placement.ts'

export const reconcile: Sweep = {
  name: 'reconcile',
  everyMs: 2_000,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => reconcileHost(deps, address)))
    await addMissingJobs(deps)
    await repairReservations(deps)
  },
}

async function reconcileHost(deps: Deps, address: string): Promise<void> {
  const ended = await listEndedHolders(deps)
  const settled = await listSettled(deps)
  const state = await deps.hosts
    .clientAt(address)
    .getState()
    .catch(() => undefined) // heartbeat.ts says so.
  if (!state) return
  const vms = new Map(state.vms.map((vm) => [vm.id, vm]))
  await deleteOrphans(deps, state, address)
  for (const row of ended) {
    if (row.host_id !== state.id || vms.has(row.id)) continue
    await deps.db.transaction().execute((tx) => releaseMemory(tx, row.id))
  }
  for (const row of settled) {
    if (row.host_id === state.id) await settle(deps, row, vms.get(row.id))
  }
}

const PLACED = ['id', 'fence', 'status', 'host_id'] as const

const listSettled = (deps: Deps): Promise<Placed[]> =>
  deps.db
    .selectFrom('sandboxes')
    .select(PLACED)
    .where('status', 'in', ['running', 'pausing', 'paused', 'error'])
    .where('host_id', 'is not', null)
    .execute()

const listEndedHolders = (deps: Deps): Promise<Placed[]> =>
  deps.db
    .selectFrom('sandboxes')
    .select(PLACED)
    .where('reserved_mib', '>', 0)
    .where('status', 'in', ['destroyed', 'failed'])
    .execute()

async function deleteOrphans(deps: Deps, state: HostState, address: string): Promise<void> {
  if (state.vms.length === 0) return
  const ids = state.vms.map((vm) => vm.id)
  const rows = await deps.db.selectFrom('sandboxes').select(PLACED).where('id', 'in', ids).execute()
  const byId = new Map(rows.map((row) => [row.id, row]))
  const orphans = state.vms.filter((vm) => {
    const row = byId.get(vm.id)
    return !row || isTerminal(row.status) || row.host_id !== state.id
  })
  await Promise.all(orphans.map((vm) => deleteOrphan(deps, address, vm, byId.get(vm.id))))
}

async function deleteOrphan(deps: Deps, address: string, vm: HostVm, row: Placed | undefined): Promise<void> {
  const fence = Math.max(vm.fence, row?.fence ?? 0) + 1
  try {
    await deps.hosts.clientAt(address).deleteVm(vm.id, fence)
    deps.log.warn({ sandbox: vm.id, status: row?.status ?? 'unknown' }, 'deleted a VM that belongs to nobody')
  } catch (error) {
    deps.log.warn({ err: error, sandbox: vm.id }, 'could not delete a VM that belongs to nobody, trying again')
  }
}

async function settle(deps: Deps, row: Placed, vm: HostVm | undefined): Promise<void> {
  const verdict = decideRepair(row.status, vm)
  if (!verdict) return
  const { move, reason } = verdict
  try {
    await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql`select from sandboxes where id = ${row.id} and fence = ${row.fence}
        for no key update`.execute(tx)
      if (rows.length === 0) return // Another operation has begun since: it will see for itself.
      const moved = await beginMove(tx, row.id, move, { actor: 'system', reason })
      if (move !== 'park') return releaseMemory(tx, row.id)
      await reserveMemoryUnchecked(tx, moved)
      await addPauseJob(tx, moved)
    })
    deps.log.warn({ sandbox: row.id, host: row.host_id, move, reason }, 'a sandbox and its VM did not agree')
  } catch (error) {
    if (!(error instanceof Failure)) throw error // 409: it has ended its operation since.
  }
}
