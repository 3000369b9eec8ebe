/** Rows for tests of what reads them; the verbs that make real ones have tests of their own. */
import { newId, type SandboxStatus } from '@warren/protocol'
import type { Db } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'

let made = 0

export async function insertSandbox(
  db: Db,
  userId: string,
  status: SandboxStatus = 'running',
  more: Partial<NewSandboxRow> = {},
): Promise<SandboxRow> {
  made++
  return db
    .insertInto('sandboxes')
    .values({
      id: newId('sandbox'),
      user_id: userId,
      name: `box-${made}`,
      status,
      shape: 's-1vcpu-1gb',
      rootfs: 'debian:13',
      region: 'eu',
      vcpu: 1,
      mem_mib: 1024,
      disk_mib: 10_240,
      bandwidth_quota_bytes: 5 * 1024 ** 3,
      ...more,
    })
    .returningAll()
    .executeTakeFirstOrThrow()
}
