/**
 * Detaches a disk from a sandbox, in any status. The response is sent when the mount in the guest is gone, if its host answers,
 * and says what could not be saved in the bucket.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { badField, notFound } from '@warren/kit/failure'
import { checkAbsolutePath, type DiskDetachView, normalisePath } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { emittingMount } from './emit.ts'
import { cleanGuestText } from './guest-text.ts'
import { pushMounts, raiseMountRevisions } from './host-mounts.ts'
import { findDisk } from './queries.ts'

export async function detachDisk(
  deps: Deps,
  sandbox: SandboxRow,
  idOrName: string,
  givenPath: string,
): Promise<DiskDetachView> {
  const fault = checkAbsolutePath(givenPath)
  if (fault) throw badField({ mount_path: fault })
  const mountPath = normalisePath(givenPath)
  const mountId = await deps.db.transaction().execute(async (tx) => {
    const disk = await findDisk(tx, sandbox.user_id, idOrName)
    if (!disk) throw notFound('disk attachment')
    const { rows } = await sql<{ id: string }>`delete from disk_attachments
      where sandbox_id = ${sandbox.id} and disk_id = ${disk.id} and mount_path = ${mountPath}
      returning id, ${emittingMount('disk.detach', disk, { sandboxId: sandbox.id, mountPath })}`.execute(tx)
    const [attachment] = rows
    if (!attachment) throw notFound('disk attachment')
    await raiseMountRevisions(tx, [sandbox.id])
    return attachment.id
  })
  await crashPoint('disk-detach.committed')
  const removed = await pushMounts(deps, [sandbox.id])
  await crashPoint('disk-detach.pushed')
  const warning = removed.find(({ id }) => id === mountId)?.warning
  return { detached: true, ...(warning === undefined ? {} : { warning: cleanGuestText(warning) }) }
}
