/**
 * Attaches a disk to a running sandbox. The response is sent when the host has the mount; it is `pending` until the guest has
 * mounted it. A host that cannot be reached gets it from a sweep (reconcile.ts). Repeating an attach changes nothing.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { badField, failure, unavailable, wrongState } from '@warren/kit/failure'
import { DISK_MOUNTS_MAX, type DiskAttachBody, newId } from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { DiskRow, SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { emittingMount } from './emit.ts'
import { pushMounts, raiseMountRevisions } from './host-mounts.ts'
import { checkAttachment, type NewAttachment, overlap, parseAttachment } from './parse-attachment.ts'
import { getDisk, lockDisk } from './queries.ts'

/** Runs in the transaction that attaches the disk. */
type Commit = (tx: Tx) => Promise<void>

export async function attachDisk(
  deps: Deps,
  sandbox: SandboxRow,
  body: DiskAttachBody,
  commit?: Commit,
): Promise<void> {
  const fault = checkAttachment(body)
  if (fault) throw badField({ [fault[0]]: fault[1] })
  const wanted = parseAttachment(body)
  const isNew = await deps.db.transaction().execute(async (tx) => {
    const added = await attach(tx, sandbox, wanted)
    await commit?.(tx)
    return added
  })
  await crashPoint('disk-attach.committed')
  if (isNew) await pushMounts(deps, [sandbox.id])
  await crashPoint('disk-attach.pushed')
}

/** Returns false if the disk is attached like this already. */
async function attach(tx: Tx, { id: sandboxId, user_id }: SandboxRow, wanted: NewAttachment): Promise<boolean> {
  const { id: diskId } = await getDisk(tx, user_id, wanted.disk)
  const { status, host_id } = await tx
    .selectFrom('sandboxes')
    .select(['status', 'host_id'])
    .where('id', '=', sandboxId)
    .forNoKeyUpdate()
    .executeTakeFirstOrThrow()
  if (status !== 'running') throw wrongState(status, 'running')
  const disk = await lockDisk(tx, diskId, 'share')
  if (await isAttached(tx, sandboxId, disk, wanted)) return false
  const { rows } = await sql`select from hosts where id = ${host_id} and disks`.execute(tx)
  if (rows.length === 0) throw disksUnavailable()
  await tx
    .insertInto('disk_attachments')
    .values(newAttachmentRow(sandboxId, disk.id, wanted))
    .returning(emittingMount('disk.attach', disk, { sandboxId, mountPath: wanted.mountPath }).as('emitted'))
    .execute()
  await raiseMountRevisions(tx, [sandboxId])
  return true
}

async function isAttached(tx: Tx, sandboxId: string, disk: DiskRow, wanted: NewAttachment): Promise<boolean> {
  const others = await tx
    .selectFrom('disk_attachments as a')
    .innerJoin('disks as d', 'd.id', 'a.disk_id')
    .select(['a.disk_id', 'a.mount_path', 'a.sub_path', 'a.read_only', 'd.name'])
    .where('a.sandbox_id', '=', sandboxId)
    .execute()
  const other = others.find(({ mount_path }) => overlap(mount_path, wanted.mountPath))
  if (!other) {
    if (others.length < DISK_MOUNTS_MAX) return false
    throw failure('cap_reached', `disk attachment cap reached: a sandbox has at most ${DISK_MOUNTS_MAX} at once`)
  }
  if (other.mount_path !== wanted.mountPath) {
    throw failure(
      'path_in_use',
      `${wanted.mountPath} overlaps ${other.mount_path}, where disk ${other.name} is mounted`,
    )
  }
  if (other.disk_id !== disk.id) {
    throw failure('path_in_use', `mount_path ${wanted.mountPath} is used by disk ${other.name}`)
  }
  if (other.sub_path !== wanted.subPath || other.read_only !== wanted.readOnly) {
    const message = `disk ${disk.name} is mounted at ${wanted.mountPath} with another sub_path or read_only; detach it first`
    throw failure('path_in_use', message)
  }
  return true
}

export const newAttachmentRow = (
  sandboxId: string,
  diskId: string,
  { mountPath, subPath, readOnly }: NewAttachment,
) => ({
  id: newId('mount'),
  sandbox_id: sandboxId,
  disk_id: diskId,
  mount_path: mountPath,
  sub_path: subPath,
  read_only: readOnly,
  error: null,
})

/** No host, or not the one of the sandbox, can mount disks. */
export const disksUnavailable = () => unavailable('disks API not configured')
