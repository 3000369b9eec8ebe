/**
 * Inserts sandbox rows for tests of code that reads them; the operations that create real ones have their own tests.
 */
import { newId, type SandboxStatus } from '@warren/protocol'
import type { Db } from '../db/connect.ts'
import type { NewSandboxRow, SandboxRow } from '../db/schema.ts'

let inserted = 0

export async function insertSandbox(
  db: Db,
  userId: string,
  status: SandboxStatus = 'running',
  more: Partial<NewSandboxRow> = {},
): Promise<SandboxRow> {
  inserted++
  return db
    .insertInto('sandboxes')
    .values({
      id: newId('sandbox'),
      user_id: userId,
      name: `sandbox-${inserted}`,
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
