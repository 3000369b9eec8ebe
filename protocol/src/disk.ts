/** Disks: buckets of an S3-compatible store, mounted into sandboxes (spec 2.6, 3.4, 4.5; wire 7). */
import { type Static, Type } from 'typebox'
import { DiskId, ResourceName, SandboxId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { checkAbsolutePath, normalisePath } from './paths.ts'
import { checkHttpUrl } from './urls.ts'
import { truncateUtf8 } from './utf8.ts'

export const DISK_REGION_DEFAULT = 'auto'
/** One HEAD request to the bucket, when a disk is registered and when its credentials change. */
export const DISK_PROBE_TIMEOUT_MS = 3_000
export const MOUNT_POLL_MS = 30_000
export const MOUNT_ERROR_MAX_BYTES = 1024

export const DiskKind = Type.Literal('s3')

export const MOUNT_STATUSES = ['pending', 'mounted', 'failed'] as const
export type MountStatus = (typeof MOUNT_STATUSES)[number]
export const MountStatus = Type.Enum(MOUNT_STATUSES)

/** What may become what. Detach is not among them: it removes the record. */
export const MOUNT_MOVES = {
  mountDone: { from: ['pending'], to: 'mounted' },
  mountFailed: { from: ['pending'], to: 'failed' },
  /** A poll found the mount gone. */
  lose: { from: ['mounted'], to: 'failed' },
  /** After a resume, or with new credentials. */
  retry: { from: ['failed'], to: 'pending' },
} as const satisfies Record<string, { from: readonly MountStatus[]; to: MountStatus }>
export type MountMove = keyof typeof MOUNT_MOVES

const Credentials = Type.Object(
  { access_key: Type.String({ minLength: 1 }), secret_key: Type.String({ minLength: 1 }) },
  { description: 'Encrypted at rest, never returned.' },
)

export const DiskCreateBody = Type.Object({
  name: ResourceName,
  kind: DiskKind,
  config: Type.Object({
    bucket: Type.String({ minLength: 1 }),
    endpoint: Type.String({ minLength: 1, description: 'Full HTTP(S) base URL of the store.' }),
    region: optionalNull(Type.String({ description: 'Absent or empty: auto.' })),
    use_path_style: optionalNull(Type.Boolean({ description: '`endpoint/bucket/key`, not `bucket.endpoint/key`.' })),
  }),
  credentials: Credentials,
})
export type DiskCreateBody = Static<typeof DiskCreateBody>

/** For the field `config.endpoint`. */
export function checkDiskEndpoint(endpoint: string): string | undefined {
  const fault = checkHttpUrl(endpoint)
  if (fault) return fault
  return /[?#]/.test(endpoint) ? 'must not have a query or a fragment' : undefined
}

export const DiskPatchBody = Type.Object({ credentials: Credentials })
export type DiskPatchBody = Static<typeof DiskPatchBody>

export const DiskParams = Type.Object({ idOrName: Type.String({ description: 'Disk id or name' }) })
export type DiskParams = Static<typeof DiskParams>

export const DiskView = Type.Object({
  id: DiskId,
  name: Type.String(),
  kind: DiskKind,
  config: Type.Object({
    bucket: Type.String(),
    endpoint: Type.String(),
    region: Type.String(),
    use_path_style: Type.Boolean(),
  }),
  created_at: Timestamp,
})
export type DiskView = Static<typeof DiskView>

export const DiskDeleteView = Type.Object({ deleted: Type.Literal(true) })
export type DiskDeleteView = Static<typeof DiskDeleteView>

/** Also one entry of `disks` in the create body of a sandbox. */
export const DiskAttachBody = Type.Object({
  disk_id: Type.String({ minLength: 1, description: 'Id or name of a registered disk.' }),
  mount_path: Type.String({ description: 'Absolute; `..` is refused.' }),
  sub_path: optionalNull(Type.String({ description: 'Prefix inside the bucket; `..` is refused.' })),
})
export type DiskAttachBody = Static<typeof DiskAttachBody>

/** For the field `mount_path`. */
export function checkMountPath(mountPath: string): string | undefined {
  const fault = checkAbsolutePath(mountPath)
  if (fault) return fault
  // A bucket over the root would hide the whole system, the agent's own files included.
  return normalisePath(mountPath) === '/' ? 'must not be the root directory' : undefined
}

/** Four clients fail unless `id` is the sandbox's (wire 7). */
export const DiskAttachView = Type.Object({ ok: Type.Literal(true), id: SandboxId })
export type DiskAttachView = Static<typeof DiskAttachView>

export const DiskDetachParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  disk_id: Type.String({ description: 'Disk id or name' }),
})
export type DiskDetachParams = Static<typeof DiskDetachParams>

/** One disk may be mounted at several paths, so the path is needed to say which mount goes. */
export const DiskDetachQuery = Type.Object({ mount_path: Type.String() })
export type DiskDetachQuery = Static<typeof DiskDetachQuery>

export const DiskDetachView = Type.Object({ detached: Type.Literal(true) })
export type DiskDetachView = Static<typeof DiskDetachView>

export const DiskAttachmentView = Type.Object({
  disk_id: DiskId,
  name: Type.String(),
  kind: DiskKind,
  config: Type.Object({ bucket: Type.String(), endpoint: Type.String() }),
  mount_path: Type.String(),
  sub_path: Type.Optional(Type.String()),
  mount_status: MountStatus,
  mount_error: Type.Optional(Type.String({ description: 'Only when failed; at most 1 KiB.' })),
})
export type DiskAttachmentView = Static<typeof DiskAttachmentView>

/** The guest's agent says why a mount failed; how much of it is kept is ours to say. */
export const cutMountError = (text: string): string => truncateUtf8(text, MOUNT_ERROR_MAX_BYTES)
