/**
 * What hosts have against what the database says, every two seconds, in both directions:
 *
 *   a VM whose row has ended, or that has none        → the host deletes it, with a fence above the row's
 *   a `running` row whose VM is dead on its host      → `error`: the disk is still there. Resume (next issue) boots
 *                                                       from it, for as long as there is no snapshot
 *   a `running` row whose VM its host does not know   → `failed`: nothing is left to start from
 *   an ended row that still holds memory              → given back once the host does not list its VM
 *   a `destroying` row that no job works on           → gets one
 *   a host's promised memory against its rows         → mended, and logged: it is a bug if they ever differ
 *
 * A state is older than what is read after it, so what must have been true before is read before: a row counts as
 * without a VM only if it was running before its host was asked. A host that does not answer says nothing.
 */
import { Failure } from '@warren/kit/failure'
import { type HostState, type HostVm, isTerminal } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { addMissingDestroyJobs } from './destroy.ts'
import { beginMove } from './move.ts'
import { mendReservations, releasePlace } from './place.ts'

export const reconcile: Sweep = {
  name: 'reconcile',
  everyMs: 2_000,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => reconcileHost(deps, address)))
    await addMissingDestroyJobs(deps)
    await mendReservations(deps)
  },
}

async function reconcileHost(deps: Deps, address: string): Promise<void> {
  const ended = await listEndedHolders(deps)
  const running = await listRunning(deps)
  const state = await deps.hosts
    .at(address)
    .getState()
    .catch(() => undefined) // heartbeat.ts says so.
  if (!state) return
  const vms = new Map(state.vms.map((vm) => [vm.id, vm]))
  await deleteOrphans(deps, state, address)
  for (const row of ended) {
    if (row.host_id !== state.id || vms.has(row.id)) continue
    await deps.db.transaction().execute((tx) => releasePlace(tx, row.id))
  }
  for (const row of running) {
    if (row.host_id === state.id) await loseIfGone(deps, row, vms.get(row.id))
  }
}

type Placed = Pick<SandboxRow, 'id' | 'fence' | 'status' | 'host_id'>
const PLACED = ['id', 'fence', 'status', 'host_id'] as const

const listRunning = (deps: Deps): Promise<Placed[]> =>
  deps.db
    .selectFrom('sandboxes')
    .select(PLACED)
    .where('status', '=', 'running')
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
    await deps.hosts.at(address).deleteVm(vm.id, fence)
    deps.log.warn({ sandbox: vm.id, status: row?.status ?? 'unknown' }, 'deleted a VM that belongs to nobody')
  } catch (error) {
    deps.log.warn({ err: error, sandbox: vm.id }, 'could not delete a VM that belongs to nobody, trying again')
  }
}

async function loseIfGone(deps: Deps, row: Placed, vm: HostVm | undefined): Promise<void> {
  if (vm && vm.state !== 'dead') return
  const move = vm ? 'lose' : 'loseAll'
  const reason = vm ? `the VM ended: ${(vm.reason ?? 'nobody knows why').slice(0, 500)}` : 'the host lost the VM'
  try {
    await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql`select from sandboxes where id = ${row.id} and fence = ${row.fence}
        for update`.execute(tx)
      if (rows.length === 0) return // Another operation has begun since: it will see for itself.
      await beginMove(tx, row.id, move, { reason })
      await releasePlace(tx, row.id)
    })
    deps.log.warn({ sandbox: row.id, host: row.host_id, reason }, 'lost a VM')
  } catch (error) {
    if (!(error instanceof Failure)) throw error // 409: it is no longer running.
  }
}
