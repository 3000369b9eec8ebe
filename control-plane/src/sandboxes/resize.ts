/**
 * Grows the disk of a running sandbox, in this order:
 *
 *   1. One transaction records the resize in `sandbox_resizes`.
 *   2. The host grows the block device and the file system in it. It can be asked again at any time.
 *   3. One transaction sets the size of the sandbox, which splits its usage interval (a trigger, migration 0010), emits
 *      the event, stores the response for an Idempotency-Key and deletes the record.
 *
 * If the device has grown and the guest does not confirm its file system, the size is set nevertheless: root in the guest
 * can use the device. Only the record and the response wait for the guest.
 *
 * If the process dies, the host does not answer or the guest does not confirm, the record remains. The sweep repeats step
 * 2 and 3 once the sandbox runs, so the row and the disk agree again. Steps 2 and 3 have no effect when repeated, so
 * several requests and the sweep may work on one resize. A pause or a fork in between takes the disk as it is; what it
 * lacks is done after the resume (missing-resize.ts). A host that refuses has changed nothing, so the record is deleted.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { badField, Failure, failure, unavailable, upstreamUnavailable, wrongState } from '@warren/kit/failure'
import { span } from '@warren/kit/span'
import { checkResize, ok, type SandboxResizeBody, type SandboxResizeView, sandboxCan } from '@warren/protocol'
import { sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import type { Tx } from '../db/connect.ts'
import type { ResizeRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { HostError, type HostErrorCode, statusReason } from '../hosts/host-error.ts'
import type { CallerUser } from '../http/caller.ts'
import { type Claim, detachKey, hasResponse, storeResponse } from '../http/idempotency.ts'
import { DEAD_AFTER_S } from '../jobs/processes.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { emitEvent } from '../webhooks/emit.ts'
import { CAPACITY_RETRY_S } from './capacity.ts'
import { canPromise, checkDiskSpace, diskFull, diskPromised } from './disk-space.ts'
import { lockActiveHost } from './reservations.ts'

/** Growing by 50 GiB takes well under a second. A host waits 10 s for a guest, and may finish a fork first. */
const RESIZE_LIMIT_MS = 20_000
/** Longer than an attempt. Then the sweep takes over, also if the process still lives. */
const LEASE_S = 60
const RETRY_MAX_S = 300

export async function resizeSandbox(
  deps: Deps,
  user: CallerUser,
  { id }: SandboxRow,
  { disk_mib }: SandboxResizeBody,
  claim?: Claim,
): Promise<SandboxResizeView> {
  const { row, resize } = await deps.db.transaction().execute((tx) => begin(deps, tx, user, id, disk_mib, claim))
  if (!resize) return { id, disk_mib }
  await crashPoint('resize.begun')
  try {
    await growOnHost(deps, row, resize)
    await crashPoint('resize.grown')
    const view = await deps.db.transaction().execute((tx) => finish(tx, resize, claim))
    await crashPoint('resize.done')
    return view
  } catch (error) {
    throw await handleFailure(deps, resize, error, claim)
  }
}

/** Without `resize`: the sweep has finished the same request. */
async function begin(
  deps: Deps,
  tx: Tx,
  user: CallerUser,
  id: string,
  diskMib: number,
  claim: Claim | undefined,
): Promise<{ row: SandboxRow; resize?: ResizeRow }> {
  const row = await lockSandbox(tx, id)
  if (claim && row.disk_mib === diskMib && (await hasResponse(tx, claim))) return { row }
  const unfinished = await findUnfinished(tx, id)
  if (unfinished?.disk_mib !== diskMib) checkSize(user, row, diskMib)
  if (row.status !== 'running') throw wrongState(row.status, 'running')
  await checkPromise(deps, tx, row, diskMib - Math.max(row.disk_mib, unfinished?.disk_mib ?? 0))
  if (unfinished && unfinished.disk_mib !== diskMib) await replaceUnfinished(tx, id, unfinished, diskMib)
  const resize = await tx
    .insertInto('sandbox_resizes')
    .values({
      ...{ sandbox_id: id, disk_mib: diskMib, owner: deps.processId, audit_id: currentAuditId() ?? null },
      ...{ caller: claim?.caller ?? null, key: claim?.key ?? null, retry_at: leaseEnd },
    })
    // Continues an unfinished resize. If it is of the same size, it stores the response of the request that began it too.
    .onConflict((conflict) =>
      conflict.column('sandbox_id').doUpdateSet((eb) => ({
        disk_mib: diskMib,
        owner: deps.processId,
        retry_at: leaseEnd,
        audit_id: eb.fn.coalesce('sandbox_resizes.audit_id', 'excluded.audit_id'),
        caller: eb.fn.coalesce('sandbox_resizes.caller', 'excluded.caller'),
        key: eb.fn.coalesce('sandbox_resizes.key', 'excluded.key'),
      })),
    )
    .returningAll()
    .executeTakeFirstOrThrow()
  return { row, resize }
}

/** `mib`: what is not promised yet by the row or by an unfinished resize. */
async function checkPromise(deps: Deps, tx: Tx, { host_id }: SandboxRow, mib: number): Promise<void> {
  const host = host_id === null || mib <= 0 ? undefined : await lockActiveHost(tx, host_id)
  if (!host) return // It does not answer, which the request reports.
  await checkDiskSpace(tx, host.id)
  if (!(await canPromise(tx, host, mib, deps.config.diskOvercommit))) throw diskPromised(mib)
}

const leaseEnd = sql<Date>`now() + make_interval(secs => ${LEASE_S})`

function checkSize({ plan, limits }: CallerUser, row: SandboxRow, diskMib: number): void {
  const fault = checkResize(diskMib, row.disk_mib)
  if (fault !== undefined) throw badField({ disk_mib: fault })
  const max = limits.max_disk_mib
  if (diskMib > max) throw new Failure('plan_limit', { disk_mib: `plan ${plan} allows at most ${max}` })
}

type Unfinished = { disk_mib: number; isBusy: boolean }

const findUnfinished = (tx: Tx, id: string): Promise<Unfinished | undefined> =>
  tx
    .selectFrom('sandbox_resizes')
    .select(['disk_mib', sql<boolean>`retry_at > now() and ${isOwnerAlive}`.as('isBusy')])
    .where('sandbox_id', '=', id)
    .executeTakeFirst()

/** An unfinished resize to a smaller size is replaced, unless it is being worked on; its disk may have that size already. */
async function replaceUnfinished(tx: Tx, id: string, { disk_mib, isBusy }: Unfinished, diskMib: number): Promise<void> {
  if (isBusy || disk_mib > diskMib) {
    throw failure('wrong_state', `the disk is being grown to ${disk_mib} MiB; try again afterwards`)
  }
  await tx.deleteFrom('sandbox_resizes').where('sandbox_id', '=', id).execute()
}

const isOwnerAlive = sql<boolean>`exists (select from service_processes p where p.id = sandbox_resizes.owner
  and p.seen_at > now() - make_interval(secs => ${DEAD_AFTER_S}))`

async function growOnHost(deps: Deps, row: SandboxRow, { disk_mib }: ResizeRow): Promise<void> {
  const host = await deps.hosts.get(row.host_id)
  const body = { fence: row.fence, disk_mib, limit_ms: RESIZE_LIMIT_MS }
  await span('host: resize VM', () => host.resizeVm(row.id, body))
}

/** Also if another request has finished the same resize meanwhile: then only the response is stored. */
async function finish(tx: Tx, resize: ResizeRow, claim?: Claim): Promise<SandboxResizeView> {
  const { sandbox_id: id, disk_mib } = resize
  const { status } = await setSize(tx, resize)
  if (!sandboxCan('destroy', status)) throw wrongState(status, 'running')
  await tx.deleteFrom('sandbox_resizes').where('sandbox_id', '=', id).where('disk_mib', '<=', disk_mib).execute()
  const view = { id, disk_mib }
  const body = JSON.stringify(ok(view))
  const { caller, key } = resize
  if (caller !== null && key !== null) await storeResponse(tx, { caller, key, stored: false }, 200, body)
  if (claim) await storeResponse(tx, claim, 200, body)
  return view
}

/** The device has this size. Without an effect when repeated. */
async function setSize(tx: Tx, { sandbox_id: id, disk_mib, audit_id }: ResizeRow): Promise<SandboxRow> {
  const row = await lockSandbox(tx, id)
  if (!sandboxCan('destroy', row.status) || row.disk_mib >= disk_mib) return row
  await tx.updateTable('sandboxes').set({ disk_mib }).where('id', '=', id).execute()
  const data = { id, name: row.name, disk_mib }
  await emitEvent(tx, { userId: row.user_id, action: 'sandbox.resize', subject: id, auditId: audit_id, data })
  return row
}

/** The disk may have grown: the sweep asks again. */
const UNDECIDED: Partial<Record<HostErrorCode, string>> = {
  unreachable: 'the host did not answer; the disk is grown when it does',
  guest_unreachable:
    'the disk has grown, but the guest has not grown its file system yet; this is repeated until it does',
}
/** Another operation has begun meanwhile, such as a pause or a delete. */
const NOT_RUNNING: ReadonlySet<HostErrorCode> = new Set(['fence_lost', 'wrong_state', 'not_found'])

async function handleFailure(deps: Deps, resize: ResizeRow, error: unknown, claim?: Claim): Promise<unknown> {
  const { sandbox_id: id } = resize
  deps.log.warn({ err: error, sandbox: id, diskMib: resize.disk_mib }, 'failed to grow a disk')
  const isUndecided = !(error instanceof HostError) || UNDECIDED[error.code] !== undefined
  if (isUndecided) {
    await retryLater(deps, resize, error)
    if (claim) await detachKey(deps.db, claim)
  }
  if (!(error instanceof HostError)) return error // The database failed, and answers again.
  if (isUndecided) return upstreamUnavailable(UNDECIDED[error.code]!, { cause: error })
  await deps.db
    .deleteFrom('sandbox_resizes')
    .where('sandbox_id', '=', id)
    .where('disk_mib', '=', resize.disk_mib)
    .execute()
  const { status } = await deps.db
    .selectFrom('sandboxes')
    .select('status')
    .where('id', '=', id)
    .executeTakeFirstOrThrow()
  if (NOT_RUNNING.has(error.code)) {
    // It may have been paused and resumed since.
    if (status !== 'running') return wrongState(status, 'running')
    return unavailable('another operation on the sandbox was faster; try again', { cause: error, retryAfterSeconds: 1 })
  }
  if (error.code === 'disk_full') return diskFull(error)
  if (error.code === 'no_capacity') {
    return unavailable('the host has no room for a larger disk', { cause: error, retryAfterSeconds: CAPACITY_RETRY_S })
  }
  return upstreamUnavailable(`the disk could not be grown: ${statusReason(error)}`, { cause: error })
}

const retryLater = (deps: Deps, resize: ResizeRow, error: unknown): Promise<unknown> =>
  deps.db.transaction().execute(async (tx) => {
    if (error instanceof HostError && error.code === 'guest_unreachable') await setSize(tx, resize)
    await sql`update sandbox_resizes set owner = null, attempts = attempts + 1,
        retry_at = now() + make_interval(secs => least(power(2, least(attempts, 20)), ${RETRY_MAX_S}))
      where sandbox_id = ${resize.sandbox_id} and disk_mib = ${resize.disk_mib}`.execute(tx)
  })

const lockSandbox = (tx: Tx, id: string): Promise<SandboxRow> =>
  tx.selectFrom('sandboxes').selectAll().where('id', '=', id).forNoKeyUpdate().executeTakeFirstOrThrow()

/** Finishes the resizes that no request works on. */
export const finishResizes: Sweep = {
  name: 'finish-resizes',
  everyMs: 2_000,
  async run(deps) {
    await sql`delete from sandbox_resizes r using sandboxes s
      where s.id = r.sandbox_id and s.status in ('destroying', 'destroyed', 'failed')`.execute(deps.db)
    const unfinished = await deps.db
      .selectFrom('sandbox_resizes')
      .innerJoin('sandboxes', 'sandboxes.id', 'sandbox_id')
      .selectAll('sandbox_resizes')
      .where('status', '=', 'running')
      .where(sql<boolean>`retry_at <= now() or (sandbox_resizes.owner is not null and not ${isOwnerAlive})`)
      .execute()
    await Promise.all(unfinished.map((resize) => repeat(deps, resize)))
  },
}

async function repeat(deps: Deps, resize: ResizeRow): Promise<void> {
  const { sandbox_id: id } = resize
  try {
    const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
    if (row.status !== 'running') return
    await growOnHost(deps, row, resize)
    await deps.db.transaction().execute((tx) => finish(tx, resize))
    deps.log.info({ sandbox: id, diskMib: resize.disk_mib }, 'finished the resize of a disk')
  } catch (error) {
    deps.log.warn({ err: error, sandbox: id, attempts: resize.attempts }, 'failed to finish the resize of a disk')
    await retryLater(deps, resize, error)
  }
}
