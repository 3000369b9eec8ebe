/** Disks: buckets of an S3-compatible store that can be mounted into sandboxes. */
import { type Static, Type } from 'typebox'
import { DiskId, ResourceName, SandboxId, Timestamp } from './ids.ts'
import { optionalNull } from './optional-null.ts'
import { checkAbsolutePath, checkSubPath, normalisePath, normaliseSubPath } from './paths.ts'
import { checkHttpUrl } from './urls.ts'
import { truncateUtf8, utf8Length } from './utf8.ts'

export const DISK_REGION_DEFAULT = 'auto'
/** Limit of the HEAD request to the bucket when a disk is registered and when its credentials change. */
export const DISK_PROBE_TIMEOUT_MS = 3_000
export const MOUNT_POLL_MS = 30_000
export const MOUNT_ERROR_MAX_BYTES = 1024
/** Of one sandbox. Each mount is a process in the guest. */
export const DISK_MOUNTS_MAX = 16
/** The key of an object has at most 1024 bytes; this leaves half of them for paths below the prefix. */
export const SUB_PATH_MAX_BYTES = 512

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
  /** When the credentials change. */
  retry: { from: ['failed'], to: 'pending' },
  /** After a resume, until the mount has been checked. */
  rearm: { from: ['mounted', 'failed'], to: 'pending' },
} as const satisfies Record<string, { from: readonly MountStatus[]; to: MountStatus }>
export type MountMove = keyof typeof MOUNT_MOVES

export const DiskCredentials = Type.Object(
  {
    access_key: Type.String({ minLength: 1, maxLength: 256 }),
    secret_key: Type.String({ minLength: 1, maxLength: 1024 }),
  },
  { description: 'Encrypted at rest, never returned, and never given to a sandbox.' },
)
export type DiskCredentials = Static<typeof DiskCredentials>

export const DiskConfig = Type.Object({
  bucket: Type.String({ minLength: 1 }),
  endpoint: Type.String({
    minLength: 1,
    maxLength: 2048,
    description: 'Base URL of the store, beginning with http:// or https://, without the name of the bucket.',
  }),
  region: optionalNull(Type.String({ description: 'Region of the bucket, used in signatures. Defaults to `auto`.' })),
  use_path_style: optionalNull(
    Type.Boolean({
      description:
        'Address objects as `endpoint/bucket/key` instead of `bucket.endpoint/key`. Defaults to false, or to true if the ' +
        'host of the endpoint is an address or localhost.',
    }),
  ),
})
export type DiskConfig = Static<typeof DiskConfig>

export const DiskCreateBody = Type.Object({
  name: ResourceName,
  kind: DiskKind,
  config: DiskConfig,
  credentials: DiskCredentials,
})
export type DiskCreateBody = Static<typeof DiskCreateBody>

/** Error text for the field `config.endpoint`, or undefined if it is valid. */
export function checkDiskEndpoint(endpoint: string): string | undefined {
  const fault = checkHttpUrl(endpoint)
  if (fault) return fault
  return /[?#]/.test(endpoint) ? 'must not have a query or a fragment' : undefined
}

/** Such a store is addressed by path unless its owner says otherwise: no name of a bucket can be put in front of it. */
export function isAddressEndpoint(endpoint: string): boolean {
  const { hostname } = new URL(endpoint)
  return hostname === 'localhost' || hostname.startsWith('[') || /^[\d.]+$/.test(hostname)
}

/** The errors of a configuration, by field. Empty if it is valid. Names of buckets: kit/src/s3/endpoint.ts. */
export function checkDiskConfig({ endpoint, region }: DiskConfig): Record<string, string> {
  const endpointFault = checkDiskEndpoint(endpoint)
  if (endpointFault) return { 'config.endpoint': endpointFault }
  if (region && !/^[A-Za-z0-9-]{1,64}$/.test(region)) {
    return { 'config.region': 'must be 1 to 64 letters, digits and dashes' }
  }
  return {}
}

/** The same for credentials. Both end up in headers of requests, one of them as it is. */
export function checkDiskCredentials({ access_key, secret_key }: DiskCredentials): Record<string, string> {
  if (!/^[!-+.0-~-]+$/.test(access_key)) {
    return { 'credentials.access_key': 'must not contain spaces, commas, slashes, control or non-ASCII characters' }
  }
  if (/[\0-\x20\x7f]/.test(secret_key)) {
    return { 'credentials.secret_key': 'must not contain spaces or control characters' }
  }
  return {}
}

export const DiskPatchBody = Type.Object({ credentials: DiskCredentials })
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
  read_only: optionalNull(Type.Boolean({ description: 'Refuse every change of the bucket. Defaults to false.' })),
})
export type DiskAttachBody = Static<typeof DiskAttachBody>

/** Error text for the field `mount_path`, or undefined if it is valid. */
export function checkMountPath(mountPath: string): string | undefined {
  const fault = checkAbsolutePath(mountPath)
  if (fault) return fault
  const path = normalisePath(mountPath)
  // A bucket over the root would hide the whole system, so that no program could be started.
  if (path === '/') return 'must not be the root directory'
  const closed = KERNEL_DIRECTORIES.find((directory) => containsPath(directory, path))
  return closed === undefined ? undefined : `must not be in ${closed}`
}

/** File systems of the kernel and the runtime directory of the guest agent. */
const KERNEL_DIRECTORIES = ['/dev', '/proc', '/run', '/sys']

/** Whether the second path is the first one or below it. Both are normalised. */
export const containsPath = (outer: string, inner: string): boolean => inner === outer || inner.startsWith(`${outer}/`)

/** Error text for the field `sub_path`, or undefined if it is valid. */
export function checkDiskSubPath(subPath: string): string | undefined {
  const fault = checkSubPath(subPath)
  if (fault) return fault
  const prefix = normaliseSubPath(subPath)
  if (prefix.split('/').includes('.')) return 'must not contain "."'
  if (/\p{Cc}/u.test(prefix)) return 'must not contain control characters'
  return utf8Length(prefix) > SUB_PATH_MAX_BYTES ? `must not be longer than ${SUB_PATH_MAX_BYTES} bytes` : undefined
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

export const DiskDetachView = Type.Object({
  detached: Type.Literal(true),
  warning: Type.Optional(Type.String({ description: 'What could not be saved in the bucket before.' })),
})
export type DiskDetachView = Static<typeof DiskDetachView>

/** Names and conflicts in a report about a mount: the first few of them. */
export const MOUNT_DETAIL_EXAMPLES_MAX = 8
export const MOUNT_DETAIL_PATH_MAX_BYTES = 1024

export const MountUnsaved = Type.Object({
  files: Type.Integer({ minimum: 0 }),
  bytes: Type.Integer({ minimum: 0 }),
  names: Type.Array(Type.String(), {
    description: `Paths of up to ${MOUNT_DETAIL_EXAMPLES_MAX} of the files, relative to the mount. Chosen by the sandbox.`,
  }),
})
export type MountUnsaved = Static<typeof MountUnsaved>

export const MountConflicts = Type.Object({
  total: Type.Integer({ minimum: 0 }),
  files: Type.Array(
    Type.Object({
      path: Type.String({ description: 'Relative to the mount.' }),
      kept_as: Type.String({ description: 'Where the data is in the sandbox that was not written to the bucket.' }),
    }),
    { description: `Up to ${MOUNT_DETAIL_EXAMPLES_MAX} of them. Chosen by the sandbox.` },
  ),
})
export type MountConflicts = Static<typeof MountConflicts>

export const DiskAttachmentView = Type.Object({
  disk_id: DiskId,
  name: Type.String(),
  kind: DiskKind,
  config: Type.Object({ bucket: Type.String(), endpoint: Type.String() }),
  mount_path: Type.String(),
  sub_path: Type.Optional(Type.String()),
  read_only: Type.Boolean(),
  mount_status: MountStatus,
  mount_error: Type.Optional(
    Type.String({ description: 'Why the mount failed, at most 1 KiB. Present only when mount_status is failed.' }),
  ),
  unsaved: Type.Optional(
    Type.Unsafe<MountUnsaved>({
      ...MountUnsaved,
      description:
        'Files whose changes the bucket does not have. Of a running sandbox those of now; of a paused one those that the pause ' +
        'could not save, which are saved when it resumes. Absent if there are none or none are known.',
    }),
  ),
  conflicts: Type.Optional(
    Type.Unsafe<MountConflicts>({
      ...MountConflicts,
      description: 'Files that were changed here and by others. Of a running sandbox; absent if there are none.',
    }),
  ),
  conditional_writes: Type.Optional(
    Type.Boolean({
      description:
        'Whether the store honours conditions of writes, so that writers cannot overwrite each other. Of a running sandbox; ' +
        'absent while it is not known.',
    }),
  ),
  warning: Type.Optional(
    Type.String({ description: 'What the owner should know about files that are not in the bucket, and what to do.' }),
  ),
})
export type DiskAttachmentView = Static<typeof DiskAttachmentView>

/** The guest agent reports why a mount failed. It is not trusted to keep the text short. */
export const truncateMountError = (text: string): string => truncateUtf8(text, MOUNT_ERROR_MAX_BYTES)
