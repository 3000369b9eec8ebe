/**
 * Registers a disk, in this order:
 *
 *   1. Check the body (400).
 *   2. Check name (409), caps (429) and credit (402), so that only those who may have another disk make this machine connect
 *      to a server.
 *   3. Probe the bucket (400).
 *   4. One transaction, with the user's row locked, checks 2 again and inserts the disk.
 */
import { badField, failure } from '@warren/kit/failure'
import { checkBucketName } from '@warren/kit/s3/endpoint'
import {
  checkDiskConfig,
  checkDiskCredentials,
  DISK_REGION_DEFAULT,
  type DiskCreateBody,
  type DiskView,
  isAddressEndpoint,
  newId,
} from '@warren/protocol'
import { sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { CallerUser } from '../http/caller.ts'
import { diskCredentialsPlace } from '../secrets/places.ts'
import { checkCaps, checkCredit, type LockedUser } from '../users/caps.ts'
import { withLockedUser } from '../users/locked.ts'
import { DISK_CAPS } from './caps.ts'
import { emittingDisk } from './emit.ts'
import { probeBucket } from './probe.ts'
import { viewDisk } from './queries.ts'

/** Runs in the transaction that creates the disk. */
type Commit = (tx: Tx, view: DiskView) => Promise<void>

export async function createDisk(
  deps: Deps,
  user: CallerUser,
  { name, config: given, credentials }: DiskCreateBody,
  commit?: Commit,
): Promise<DiskView> {
  const bucketFault = checkBucketName(given.bucket)
  checkFields({ ...(bucketFault ? { 'config.bucket': bucketFault } : {}), ...checkDiskConfig(given) })
  checkFields(checkDiskCredentials(credentials))
  const config = {
    bucket: given.bucket,
    endpoint: given.endpoint,
    region: given.region || DISK_REGION_DEFAULT,
    use_path_style: given.use_path_style ?? isAddressEndpoint(given.endpoint),
  }
  await withLockedUser(deps.db, user.id, (tx, locked) => admit(tx, locked, name))
  checkFields(await probeBucket(deps, user, config, credentials))
  return withLockedUser(deps.db, user.id, async (tx, locked) => {
    await admit(tx, locked, name)
    const id = newId('disk')
    const sealed = deps.secrets.seal(diskCredentialsPlace(id), JSON.stringify(credentials))
    const row = await tx
      .insertInto('disks')
      .values({ id, user_id: user.id, name, ...config, credentials: sealed, deleted_at: null })
      .returningAll()
      .returning(emittingDisk('disk.create', { id, name, user_id: user.id }).as('emitted'))
      .executeTakeFirstOrThrow()
    const view = viewDisk(row)
    await commit?.(tx, view)
    return view
  })
}

async function admit(tx: Tx, user: LockedUser, name: string): Promise<void> {
  const { rows } = await sql`select from disks
    where user_id = ${user.id} and name = ${name} and deleted_at is null`.execute(tx)
  if (rows.length > 0) throw failure('name_in_use', `disk name ${name} is already in use`)
  await checkCaps(tx, user, DISK_CAPS)
  checkCredit(user, 'create', 'disks')
}

/** Throws 400 if there is a fault. */
export function checkFields(faults: Record<string, string>): void {
  if (Object.keys(faults).length > 0) throw badField(faults)
}
