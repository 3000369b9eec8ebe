/**
 * The mounts of a sandbox as its host must have them: one object with all mounts and their credentials (`HostVmMounts` in
 * host-disks.ts of the protocol), and how it reaches the host.
 *
 * The database holds the desired state. Every change raises the revision of each sandbox it affects, in the transaction of the
 * change. The operation that made the change then pushes the new object to the hosts. A sweep (reconcile.ts) repeats what is
 * missing: hosts report which revision they have. A sandbox that is created or resumed gets the object with that request; what
 * changes meanwhile is pushed by the sweep.
 *
 * Disks never make a create or a resume fail, so nothing here throws for them.
 */
import {
  DiskCredentials,
  type HostMount,
  type HostVmMounts,
  type HostVmMountsApplied,
  type SandboxStatus,
} from '@warren/protocol'
import { sql } from 'kysely'
import { Value } from 'typebox/value'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../hosts/host-error.ts'
import { diskCredentialsPlace } from '../secrets/places.ts'
import { mayUseLoopback } from '../users/may-use-loopback.ts'
import type { PlanName } from '../users/plans.ts'
import { recordMounts, recordUnavailable } from './record-status.ts'

type StoredMount = Omit<HostMount, 'credentials' | 'allow_loopback'> & { disk_id: string; sealed: string }
type DesiredRow = {
  host_id: string | null
  fence: number
  status: SandboxStatus
  plan: PlanName
  revision: number
  mounts: StoredMount[]
}
export type RemovedMount = HostVmMountsApplied['removed'][number]

/** A single statement, so that the revision belongs to the mounts it is read with. */
const DESIRED = `select s.host_id, s.fence, s.status, u.plan, coalesce(r.revision, 0) as revision,
    coalesce((select json_agg(json_build_object(
        'id', a.id, 'revision', a.revision, 'mount_path', a.mount_path, 'read_only', a.read_only, 'sub_path', a.sub_path,
        'endpoint', d.endpoint, 'region', d.region, 'bucket', d.bucket, 'use_path_style', d.use_path_style,
        'disk_id', d.id, 'sealed', d.credentials) order by a.id)
      from disk_attachments a join disks d on d.id = a.disk_id where a.sandbox_id = s.id), '[]') as mounts
  from sandboxes s join users u on u.id = s.user_id left join mount_revisions r on r.sandbox_id = s.id
  where s.id = $1`

/** Called in the transaction of the change. */
export async function raiseMountRevisions(tx: Tx, sandboxIds: readonly string[]): Promise<void> {
  if (sandboxIds.length === 0) return
  await sql`select raise_mount_revisions(${[...sandboxIds]}::text[])`.execute(tx)
}

/** For a create or resume. Undefined for a sandbox that never had a disk, or if its mounts cannot be read now. */
export async function findHostMounts(deps: Deps, sandboxId: string): Promise<HostVmMounts | undefined> {
  try {
    const desired = await getDesired(deps, sandboxId)
    return desired.revision === 0 ? undefined : await openMounts(deps, desired)
  } catch (error) {
    deps.log.error({ err: error, sandbox: sandboxId }, 'failed to read the mounts of a sandbox; it starts without them')
    return undefined
  }
}

/** For a resume: until a mount has been checked, its status is not known. */
export async function rearmMounts(deps: Deps, sandboxId: string): Promise<void> {
  await sql`with locked as (
      select id from disk_attachments where sandbox_id = ${sandboxId} and status <> 'pending' order by id for no key update)
    update disk_attachments a set status = 'pending', error = null from locked where a.id = locked.id`.execute(deps.db)
}

/** Called after the commit. Returns what was removed. Sandboxes that do not run get their mounts when they resume. */
export async function pushMounts(deps: Deps, sandboxIds: readonly string[]): Promise<RemovedMount[]> {
  const removed = await Promise.all(sandboxIds.map((id) => pushMountsOf(deps, id)))
  return removed.flat()
}

async function pushMountsOf(deps: Deps, sandboxId: string): Promise<RemovedMount[]> {
  try {
    const desired = await getDesired(deps, sandboxId)
    if (desired.status !== 'running') return []
    const host = await deps.hosts.get(desired.host_id)
    const applied = await host.setMounts(sandboxId, { fence: desired.fence, ...(await openMounts(deps, desired)) })
    await recordMounts(deps.db, [{ id: sandboxId, ...applied }])
    return applied.removed
  } catch (error) {
    await handleFailure(deps, sandboxId, error)
    return []
  }
}

/** The host's error codes for a sandbox that does not run there. */
const CODES_WITHOUT_VM: ReadonlySet<string> = new Set(['wrong_state', 'not_found', 'fence_lost'])

async function handleFailure(deps: Deps, sandboxId: string, error: unknown): Promise<void> {
  if (error instanceof HostError && CODES_WITHOUT_VM.has(error.code)) return
  if (error instanceof HostError && error.code === 'disks_unavailable') return recordUnavailable(deps.db, sandboxId)
  deps.log.warn({ err: error, sandbox: sandboxId }, 'failed to push the mounts of a sandbox to its host, will retry')
}

async function getDesired(deps: Deps, sandboxId: string): Promise<DesiredRow> {
  const [row] = await deps.database.named<DesiredRow>('desired-mounts', DESIRED, [sandboxId])
  if (!row) throw new Error(`sandbox ${sandboxId} does not exist`)
  return row
}

async function openMounts(deps: Deps, { plan, revision, mounts }: DesiredRow): Promise<HostVmMounts> {
  const allow_loopback = mayUseLoopback(deps.config, plan)
  const opened = mounts.map(async ({ disk_id, sealed, ...mount }) => ({
    ...mount,
    allow_loopback,
    credentials: await openCredentials(deps, disk_id, sealed),
  }))
  return { revision, mounts: await Promise.all(opened) }
}

async function openCredentials(deps: Deps, diskId: string, sealed: string): Promise<DiskCredentials> {
  const credentials: unknown = JSON.parse(await deps.secrets.open(diskCredentialsPlace(diskId), sealed))
  if (!Value.Check(DiskCredentials, credentials)) throw new Error(`the stored credentials of ${diskId} are not valid`)
  return credentials
}
