/** Disks: buckets of an S3-compatible store that can be mounted into sandboxes. */
import { type Static, Type } from 'typebox'
import { DiskId, ResourceName, SandboxId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { checkAbsolutePath, normalisePath } from './paths.ts'
import { checkHttpUrl } from './urls.ts'
import { truncateUtf8 } from './utf8.ts'

export const DISK_REGION_DEFAULT = 'auto'
/** Limit of the HEAD request to the bucket when a disk is registered and when its credentials change. */
export const DISK_PROBE_TIMEOUT_MS = 3_000
export const MOUNT_POLL_MS = 30_000
export const MOUNT_ERROR_MAX_BYTES = 1024

export const DiskKind = Type.Literal('s3')

export const MOUNT_STATUSES = ['pending', 'mounted', 'failed'] as const
export type MountStatus = (typeof MOUNT_STATUSES)[number]
export const MountStatus = Type.Enum(MOUNT_STATUSES)

/** Allowed transitions of a mount. Detach is not one of them because it deletes the record. */
export const MOUNT_MOVES = {
  mountDone: { from: ['pending'], to: 'mounted' },
  mountFailed: { from: ['pending'], to: 'failed' },
  /** A poll found that the mount no longer exists. */
  lose: { from: ['mounted'], to: 'failed' },
  /** After a resume, or when the credentials change. */
  retry: { from: ['failed'], to: 'pending' },
} as const satisfies Record<string, { from: readonly MountStatus[]; to: MountStatus }>
export type MountMove = keyof typeof MOUNT_MOVES

const Credentials = Type.Object(
  { access_key: Type.String({ minLength: 1 }), secret_key: Type.String({ minLength: 1 }) },
  { description: 'Encrypted at rest and never returned.' },
)

export const DiskCreateBody = Type.Object({
  name: ResourceName,
  kind: DiskKind,
  config: Type.Object({
    bucket: Type.String({ minLength: 1 }),
    endpoint: Type.String({ minLength: 1, description: 'Base URL of the store, beginning with http:// or https://.' }),
    region: optionalNull(Type.String({ description: 'Defaults to `auto`.' })),
    use_path_style: optionalNull(
      Type.Boolean({ description: 'Address objects as `endpoint/bucket/key` instead of `bucket.endpoint/key`.' }),
    ),
  }),
  credentials: Credentials,
})
export type DiskCreateBody = Static<typeof DiskCreateBody>

/** Error text for the field `config.endpoint`, or undefined if it is valid. */
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

/** Also an entry of `disks` when a sandbox is created. */
export const DiskAttachBody = Type.Object({
  disk_id: Type.String({ minLength: 1, description: 'Id or name of a disk.' }),
  mount_path: Type.String({ description: 'Absolute path in the sandbox, without `..`.' }),
  sub_path: optionalNull(Type.String({ description: 'Mount only this prefix of the bucket. Must not contain `..`.' })),
})
export type DiskAttachBody = Static<typeof DiskAttachBody>

/** Error text for the field `mount_path`, or undefined if it is valid. */
export function checkMountPath(mountPath: string): string | undefined {
  const fault = checkAbsolutePath(mountPath)
  if (fault) return fault
  // A bucket mounted over the root would hide the whole system, including the files of the guest agent.
  return normalisePath(mountPath) === '/' ? 'must not be the root directory' : undefined
}

/** `id` is the id of the sandbox, not of the disk: several clients depend on it. */
export const DiskAttachView = Type.Object({ ok: Type.Literal(true), id: SandboxId })
export type DiskAttachView = Static<typeof DiskAttachView>

export const DiskDetachParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  disk_id: Type.String({ description: 'Disk id or name' }),
})
export type DiskDetachParams = Static<typeof DiskDetachParams>

/** A disk can be mounted at several paths. */
export const DiskDetachQuery = Type.Object({
  mount_path: Type.String({ description: 'Path of the mount to remove.' }),
})
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
  mount_error: Type.Optional(
    Type.String({ description: 'Why the mount failed, at most 1 KiB. Present only when mount_status is failed.' }),
  ),
})
export type DiskAttachmentView = Static<typeof DiskAttachmentView>

/** The guest agent reports why a mount failed. It is not trusted to keep the text short. */
export const truncateMountError = (text: string): string => truncateUtf8(text, MOUNT_ERROR_MAX_BYTES)
