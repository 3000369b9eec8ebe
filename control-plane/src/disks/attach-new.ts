/** How a sandbox gets its disks while it is created. */
import { badField } from '@warren/kit/failure'
import type { Tx } from '../db/connect.ts'
import { newAttachmentRow } from './attach.ts'
import { raiseMountRevisions } from './host-mounts.ts'
import type { NewAttachment } from './parse-attachment.ts'
import { findDisk } from './queries.ts'

export type LockedAttachment = NewAttachment & { diskId: string }

/** Locks the named disks, so that none is deleted before the sandbox has it; 400 if one does not exist. */
export async function lockDisks(tx: Tx, userId: string, wanted: readonly NewAttachment[]): Promise<LockedAttachment[]> {
  if (wanted.length === 0) return []
  const attachments: LockedAttachment[] = []
  for (const attachment of wanted) {
    const disk = await findDisk(tx, userId, attachment.disk)
    if (!disk) throw diskNotFound(attachment)
    attachments.push({ ...attachment, diskId: disk.id })
  }
  const ids = new Set(attachments.map(({ diskId }) => diskId))
  const locked = await tx
    .selectFrom('disks')
    .select('id')
    .where('id', 'in', [...ids])
    .where('deleted_at', 'is', null)
    .orderBy('id')
    .forShare()
    .execute()
  const gone = attachments.find(({ diskId }) => !locked.some(({ id }) => id === diskId))
  if (gone) throw diskNotFound(gone)
  return attachments
}

const diskNotFound = ({ disk }: NewAttachment) => badField({ disks: `disk not found: ${disk.slice(0, 100)}` })

/** The events are emitted when the sandbox runs (migration 0017). */
export async function addAttachments(
  tx: Tx,
  sandboxId: string,
  attachments: readonly LockedAttachment[],
): Promise<void> {
  if (attachments.length === 0) return
  const rows = attachments.map((attachment) => newAttachmentRow(sandboxId, attachment.diskId, attachment))
  await tx.insertInto('disk_attachments').values(rows).execute()
  await raiseMountRevisions(tx, [sandboxId])
}
