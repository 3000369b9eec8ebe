/**
 * The disks of a guest: what the host agent asks of the guest agent (guest-agent/src/mounts.rs), from GUEST_PROTOCOL.DISKS on.
 *
 *   PUT  /mounts        GuestMountsBody → GuestMountsApplied   the complete set. Answers when those that are no longer listed are
 *                                                              saved and unmounted; the others are mounted afterwards
 *   GET  /mounts        → GuestMounts
 *   GET  /mounts/watch  → lines of GuestMounts                 now and after each change, until the host closes the stream
 *   POST /mounts/flush  GuestFlushBody → GuestMounts           saves everything; `unsaved` says what is left
 *
 * POST /wake closes the connections of mounts and drops what they have cached. With the identity of a new machine it discards
 * unsaved changes and removes all mounts, before it answers.
 */
import { type Static, Type } from 'typebox'
import { MountStatus } from './disk.ts'

export const GuestMountWanted = Type.Object({
  id: Type.String({ pattern: '^[A-Za-z0-9_-]{1,64}$' }),
  mount_path: Type.String({ minLength: 2 }),
  address: Type.String({ description: 'Address and port of the S3 proxy.' }),
  token: Type.String({ description: 'Of this mount (docs/disk-protocol.md).' }),
  read_only: Type.Optional(Type.Boolean()),
  revision: Type.Integer({ minimum: 0, description: 'When it rises, a mount that failed is tried again at once.' }),
  stage_max_mib: Type.Optional(Type.Integer({ minimum: 1, description: 'Unsaved data on the disk of the guest.' })),
})
export type GuestMountWanted = Static<typeof GuestMountWanted>

export const GuestMountsBody = Type.Object({ mounts: Type.Array(GuestMountWanted, { maxItems: 16 }) })
export type GuestMountsBody = Static<typeof GuestMountsBody>

/** What the mount program says about itself. */
export const GuestMountDetails = Type.Object({
  conditions: Type.Enum(['unknown', 'unused', 'honoured', 'ignored', 'refused'], {
    description: 'Whether the server honours conditions on writes, so that writers cannot overwrite each other.',
  }),
  read_only: Type.Boolean(),
  dirty_files: Type.Integer({ minimum: 0 }),
  dirty_bytes: Type.Integer({ minimum: 0 }),
  problems: Type.Array(
    Type.Object({
      path: Type.String(),
      message: Type.String(),
      kept: Type.Optional(Type.String({ description: 'Where the data is that conflicts with the bucket.' })),
    }),
    { maxItems: 100 },
  ),
  unreachable: Type.Optional(Type.String()),
})
export type GuestMountDetails = Static<typeof GuestMountDetails>

/** Of names and conflicts: the first few, and how many there are. */
export const GUEST_MOUNT_EXAMPLES_MAX = 8
/** Longer paths are cut, and end with `…`. */
export const GUEST_MOUNT_PATH_MAX_CHARACTERS = 512

const GuestPath = Type.String({ maxLength: GUEST_MOUNT_PATH_MAX_CHARACTERS })

/** What the bucket does not have yet. It is saved when the bucket answers again, also after a pause. */
export const GuestMountUnsaved = Type.Object({
  files: Type.Integer({ minimum: 0 }),
  bytes: Type.Integer({ minimum: 0 }),
  names: Type.Array(GuestPath, {
    maxItems: GUEST_MOUNT_EXAMPLES_MAX,
    description: 'Paths of some of the files, relative to the mount.',
  }),
})
export type GuestMountUnsaved = Static<typeof GuestMountUnsaved>

export const GuestMountConflict = Type.Object({
  path: GuestPath,
  kept_as: Type.String({
    maxLength: GUEST_MOUNT_PATH_MAX_CHARACTERS,
    description: 'Path in the guest of the data that was not written, because the object had been changed by others.',
  }),
})
export type GuestMountConflict = Static<typeof GuestMountConflict>

/**
 * `unsaved`, `conflicts`, `conflicts_total` and `conditional_writes` are reported from GUEST_PROTOCOL.MOUNT_DETAILS on, once the
 * mount program has said something about itself. The guest is not trusted: texts are its own.
 */
export const GuestMount = Type.Object({
  id: Type.String(),
  revision: Type.Integer(),
  status: MountStatus,
  mount_error: Type.Optional(Type.String({ maxLength: 4096, description: 'Present only when status is failed.' })),
  details: Type.Optional(GuestMountDetails),
  unsaved: Type.Optional(GuestMountUnsaved),
  conflicts: Type.Optional(Type.Array(GuestMountConflict, { maxItems: GUEST_MOUNT_EXAMPLES_MAX })),
  conflicts_total: Type.Optional(Type.Integer({ minimum: 0 })),
  conditional_writes: Type.Optional(
    Type.Boolean({
      description:
        'Whether the server honours conditions of writes, so that writers cannot overwrite each other. Absent until it is ' +
        'known, and for a mount that is read-only.',
    }),
  ),
})
export type GuestMount = Static<typeof GuestMount>

export const GuestMounts = Type.Object({ mounts: Type.Array(GuestMount, { maxItems: 16 }) })
export type GuestMounts = Static<typeof GuestMounts>

export const GuestMountsApplied = Type.Object({
  ...GuestMounts.properties,
  removed: Type.Array(
    Type.Object({
      id: Type.String(),
      unsaved_files: Type.Integer({
        minimum: 0,
        description: 'Whose changes remain in the stage folder of the mount.',
      }),
    }),
    { maxItems: 64, description: 'Also what an earlier request removed, if its answer may not have been received.' },
  ),
})
export type GuestMountsApplied = Static<typeof GuestMountsApplied>

export const GuestFlushBody = Type.Object({ deadline_ms: Type.Integer({ minimum: 0 }) })
export type GuestFlushBody = Static<typeof GuestFlushBody>
