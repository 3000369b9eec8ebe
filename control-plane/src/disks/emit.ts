/** Webhook events of disks, as expressions for the statements that cause them. Those of created and destroyed sandboxes: migration 0017. */
import type { RawBuilder } from 'kysely'
import type { DiskRow } from '../db/schema.ts'
import { emitting } from '../webhooks/emit.ts'

type EmittedDisk = Pick<DiskRow, 'id' | 'name' | 'user_id'>

export const emittingDisk = (
  action: 'disk.create' | 'disk.delete',
  { id, name, user_id }: EmittedDisk,
): RawBuilder<null> => emitting({ userId: user_id, action, subject: id, data: { id, name, disk_id: id } })

export const emittingMount = (
  action: 'disk.attach' | 'disk.detach',
  { id, name, user_id }: EmittedDisk,
  { sandboxId, mountPath }: { sandboxId: string; mountPath: string },
): RawBuilder<null> => {
  const data = { id, name, disk_id: id, sandbox_id: sandboxId, mount_path: mountPath }
  return emitting({ userId: user_id, action, subject: sandboxId, data })
}
