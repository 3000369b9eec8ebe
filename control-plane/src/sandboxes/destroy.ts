/**
 * Destroy: idempotent, allowed in every state, and stronger than every other operation. The move raises the fence, so
 * an operation in progress can no longer commit. The work is a job, added with the move and retried until it succeeds.
 * It ends when the host has confirmed that nothing of the VM is left, even if the host never knew the VM.
 *
 * A dead host cannot confirm. The job waits LOST_AFTER_S for it to return. Then the sandbox becomes destroyed for its
 * owner, whose name and cap must not depend on a broken machine, but its memory stays reserved on that host. If the
 * host returns after all, reconcile.ts deletes the VM there and then releases the memory.
 */
import { crashPoint } from '@warren/kit/crash-point'
import type { SandboxDeleteView } from '@warren/protocol'
import { sql } from 'kysely'
import { Type } from 'typebox'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { addJob, defineJob } from '../jobs/job.ts'
import { type BeginOptions, beginMove, endMove } from './move.ts'

export const LOST_AFTER_S = 60

export const destroyJob = defineJob({
  name: 'destroy-sandbox',
  payload: Type.Object({ id: Type.String() }),
  maxAttempts: 25,
  key: ({ id }) => `destroy ${id}`,
  async run(deps, { id }, { signal }) {
    const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirst()
    // The only way out of `destroying` is `destroyed`, so another run of this job has already completed.
    if (row?.status !== 'destroying') return
    await crashPoint('delete.started')
    const confirmed = await deleteVm(deps, row, signal)
    await crashPoint('delete.deleted')
    await deps.db
      .transaction()
      .execute((tx) => endMove(tx, id, 'destroyDone', row.fence, { releasesMemory: confirmed }))
    await crashPoint('delete.done')
  },
})

export async function destroySandbox(deps: Deps, id: string, options: BeginOptions = {}): Promise<SandboxDeleteView> {
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
      await beginMove(tx, id, 'destroyWithoutVm', options)
      return 'destroyed'
    }
    await beginMove(tx, id, 'destroy', options)
    await addJob(tx, destroyJob, { id })
    return 'destroying'
  })
  await crashPoint('delete.begun')
  return { id, status }
}

/** Returns whether the host confirmed the deletion. Throws, so that the job is retried, unless the host is lost. */
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
