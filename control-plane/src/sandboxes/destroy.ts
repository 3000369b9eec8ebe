/**
 * Destroy: idempotent, allowed in every state, and it wins: the move raises the fence, so whatever was under way is
 * refused from then on. The work is a job, added with the move and tried until it is done. It ends when the host has
 * said that nothing is left, also when it never knew the VM.
 *
 * A host that is dead cannot say anything. For LOST_AFTER_S the job waits for it to come back; then the sandbox is
 * destroyed for its owner, whose name and cap should not depend on a broken machine. Its address and memory stay with
 * that host: should it come back after all, reconcile.ts deletes the VM there before it gives the memory back.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { SandboxDeleteView } from '@warren/protocol'
import { sql } from 'kysely'
import { Type } from 'typebox'
import type { Tx } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { type Beginning, beginMove, endMove } from './move.ts'
import { releaseMemory } from './placement.ts'

export const LOST_AFTER_S = 60

export const destroyJob = defineJob({
  name: 'destroy-sandbox',
  payload: Type.Object({ id: Type.String() }),
  maxAttempts: 25,
  async run(deps, { id }, { signal }) {
    const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirst()
    // Only one way leads out of `destroying`: if it is over, somebody has done this very work.
    if (row?.status !== 'destroying') return
    await crashPoint('delete.started')
    const confirmed = await deleteVm(deps, row, signal)
    await crashPoint('delete.deleted')
    await deps.db.transaction().execute(async (tx) => {
      await endMove(tx, id, 'destroyDone', row.fence)
      if (confirmed) await releaseMemory(tx, id)
    })
    await crashPoint('delete.done')
  },
})

export async function destroySandbox(deps: Deps, id: string, why: Beginning = {}): Promise<SandboxDeleteView> {
  const status = await deps.db.transaction().execute(async (tx) => {
    const row = await tx
      .selectFrom('sandboxes')
      .select('status')
      .where('id', '=', id)
      .forNoKeyUpdate()
      .executeTakeFirst()
    if (!row || row.status === 'destroyed') return 'destroyed'
    if (row.status === 'destroying') return 'destroying'
    if (row.status === 'failed') {
      await beginMove(tx, id, 'discard', why)
      return 'destroyed'
    }
    await beginMove(tx, id, 'destroy', why)
    await addDestroyJob(tx, id)
    return 'destroying'
  })
  await crashPoint('delete.begun')
  return { id, status }
}

export const addDestroyJob = (tx: Tx, id: string): Promise<void> =>
  addJob(tx, destroyJob, { id }, { key: `destroy ${id}` })

/** Whether the host confirmed. Throws, to be tried again, while there is hope that it will. */
async function deleteVm(deps: Deps, row: SandboxRow, signal: AbortSignal): Promise<boolean> {
  if (row.host_id === null) return true
  try {
    const host = await deps.hosts.get(row.host_id)
    await host.deleteVm(row.id, row.fence, signal)
    return true
  } catch (error) {
    if (error instanceof HostError && error.code === 'unreachable' && (await isLost(deps, row.host_id))) return false
    throw error
  }
}

async function isLost(deps: Deps, hostId: string): Promise<boolean> {
  const { rows } = await sql`select from hosts where id = ${hostId} and status = 'dead'
    and seen_at < now() - make_interval(secs => ${LOST_AFTER_S})`.execute(deps.db)
  return rows.length > 0
}
