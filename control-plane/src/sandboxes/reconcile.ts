/**
 * Compares what hosts run with what the database says, every two seconds, and repairs the differences:
 *
 *   a VM without a row, or whose sandbox has ended    → the host deletes it, with a fence above the row's; one that is
 *                                                       older than this database is kept (orphans.ts)
 *   a row and a VM that disagree                      → repaired as decide-repair.ts decides
 *   an ended sandbox that still holds memory          → released once the host no longer lists its VM
 *   a disk that has another size than its row         → grown to the larger one (resize.ts)
 *   a guest that waits for space on its host's disk   → its status reason says so
 *   an operation without a job                        → gets one (missing-jobs.ts)
 *   a reservation of another size than its VMM        → recomputed (recompute-reservations.ts)
 *   a host whose reserved memory is wrong             → corrected and logged, because it is a bug
 *
 * A host's state is older than anything read after it. So rows are read before the host is asked, and a repair applies
 * only if no operation has begun since (the fence is unchanged). A host that does not answer changes nothing.
 */
import { Failure } from '@warren/kit/failure'
import type { HostVm } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { hostAddresses } from '../hosts/heartbeat.ts'
import { addJob } from '../jobs/job.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { decideRepair } from './decide-repair.ts'
import { addMissingJobs } from './missing-jobs.ts'
import { addMissingResize } from './missing-resize.ts'
import { beginMove } from './move.ts'
import { noteWaiting } from './note-waiting.ts'
import { deleteOrphans } from './orphans.ts'
import { pauseJob } from './pause.ts'
import { recomputeReservations } from './recompute-reservations.ts'
import { releaseMemory, repairReservations, reserveMemoryUnchecked } from './reservations.ts'

export const reconcile: Sweep = {
  name: 'reconcile',
  everyMs: 2_000,
  async run(deps) {
    await Promise.all(hostAddresses(deps).map((address) => reconcileHost(deps, address)))
    await addMissingJobs(deps)
    await recomputeReservations(deps)
    await repairReservations(deps)
  },
}

async function reconcileHost(deps: Deps, address: string): Promise<void> {
  const ended = await listEndedWithMemory(deps)
  const settled = await listSettled(deps)
  const state = await deps.hosts
    .clientAt(address)
    .getState()
    .catch(() => undefined) // Logged by hosts/heartbeat.ts.
  if (!state) return
  const vms = new Map(state.vms.map((vm) => [vm.id, vm]))
  await deleteOrphans(deps, state, address)
  for (const row of ended) {
    if (row.host_id !== state.id || vms.has(row.id)) continue
    await deps.db.transaction().execute((tx) => releaseMemory(tx, row.id))
  }
  for (const row of settled) {
    if (row.host_id !== state.id) continue
    await repair(deps, row, vms.get(row.id))
    await addMissingResize(deps, row, vms.get(row.id))
    await noteWaiting(deps, row, vms.get(row.id))
  }
}

const PLACED = ['id', 'fence', 'status', 'status_reason', 'host_id', 'disk_mib'] as const
type PlacedRow = Pick<SandboxRow, (typeof PLACED)[number]>

/** Sandboxes whose VM must be in a known state. In all other states an owner or a job asks the host. */
const listSettled = (deps: Deps): Promise<PlacedRow[]> =>
  deps.db
    .selectFrom('sandboxes')
    .select(PLACED)
    .where('status', 'in', ['running', 'pausing', 'paused', 'error'])
    .where('host_id', 'is not', null)
    .execute()

const listEndedWithMemory = (deps: Deps): Promise<PlacedRow[]> =>
  deps.db
    .selectFrom('sandboxes')
    .select(PLACED)
    .where('reserved_mib', '>', 0)
    .where('status', 'in', ['destroyed', 'failed'])
    .execute()

async function repair(deps: Deps, row: PlacedRow, vm: HostVm | undefined): Promise<void> {
  const decision = decideRepair(row.status, vm)
  if (!decision) return
  const { move, reason } = decision
  try {
    const repaired = await deps.db.transaction().execute(async (tx) => {
      const { rows } = await sql`select from sandboxes where id = ${row.id} and fence = ${row.fence}
        for no key update`.execute(tx)
      if (rows.length === 0) return false // Another operation has begun since. It asks the host itself.
      const moved = await beginMove(tx, row.id, move, { actor: 'system', reason })
      if (move === 'pauseAgain') {
        await reserveMemoryUnchecked(tx, moved)
        await addJob(tx, pauseJob, { id: moved.id, fence: moved.fence })
      } else await releaseMemory(tx, row.id)
      return true
    })
    if (!repaired) return
    deps.log.warn({ sandbox: row.id, host: row.host_id, move, reason }, 'repaired a sandbox that disagreed with its VM')
  } catch (error) {
    if (!(error instanceof Failure)) throw error // 409: the operation has ended since.
  }
}
