/**
 * The disks of a sandbox: what the control plane asks of the host that runs it, and what that host reports.
 *
 * The wanted mounts are always sent completely, with their credentials, never as a change: repeating them has no effect, and
 * the next ones correct a host that missed the previous ones. They are also part of create and resume. A mount that is no
 * longer listed is flushed and unmounted.
 *
 * There are two kinds of revisions. The one of the set rises with every change for a sandbox: a host that has a higher one
 * keeps it and reports it, so when two changes overtake each other the later one wins. The one of a mount rises with its
 * credentials, and when it is to be tried again: a host replaces the credentials at once, keeps a mount that works, and tries
 * one that has failed again. A status is about the revision that is reported with it.
 *
 * When a response is sent:
 *
 *   createVm      when the guest agent has answered. Mounts are `pending`; they never delay a create or make it fail
 *   resumeVm      the same. The guest gets them as soon as it has its address, and programs that use them wait for the store
 *   setVmMounts   when the new credentials are in force and the mounts that are no longer listed are gone; the others may be
 *                 `pending`. A guest that does not answer loses its access to the mounts that are no longer listed within half a
 *                 minute, and the response is an error
 *
 * A status is about the revision that is reported with it, and not the one of before: `pending` until the guest has tried.
 *
 * A host stores neither mounts nor credentials. While a VM does not run it has none, and a host agent that was restarted reports no
 * revision until it is given the mounts again. A fork has no mounts: those that its source had in memory are gone before
 * anything runs in it.
 *
 * kit/src/testing/host-disk-contract.ts holds this as tests.
 */
import { type Static, Type } from 'typebox'
import { DISK_MOUNTS_MAX, DiskCredentials, MountConflicts, MountStatus, MountUnsaved } from './disk.ts'
import { MountId, SandboxId } from './ids.ts'

/**
 * What a host allows a guest for a set of mounts: a guest has 20 s to save what is removed, and some more to unmount it. Callers of
 * setVmMounts wait longer, so that they learn how it ended.
 */
export const HOST_MOUNTS_LIMIT_MS = 40_000

const Revision = Type.Integer({ minimum: 1 })

export const HostMount = Type.Object({
  id: MountId,
  revision: Revision,
  /** Absolute and normalised. No mount of the set is inside of another. */
  mount_path: Type.String({ minLength: 2 }),
  read_only: Type.Boolean(),
  endpoint: Type.String(),
  region: Type.String({ description: '`auto` if the owner named none.' }),
  bucket: Type.String(),
  sub_path: Type.String({ description: 'Without slashes at either end. Empty for the whole bucket.' }),
  use_path_style: Type.Boolean({ description: '`endpoint/bucket/key` instead of `bucket.endpoint/key`.' }),
  /** The endpoint may be on loopback: its owner is the local user of a single machine. */
  allow_loopback: Type.Boolean(),
  credentials: DiskCredentials,
})
export type HostMount = Static<typeof HostMount>

export const HostVmMounts = Type.Object({
  revision: Type.Integer({ minimum: 0 }),
  mounts: Type.Array(HostMount, { maxItems: DISK_MOUNTS_MAX }),
})
export type HostVmMounts = Static<typeof HostVmMounts>

/** Like a change of the network, it has the fence of the last operation and does not raise it. */
export const HostVmMountsBody = Type.Object({ fence: Type.Integer({ minimum: 1 }), ...HostVmMounts.properties })
export type HostVmMountsBody = Static<typeof HostVmMountsBody>

/** What the guest says about a mount, not trusted, as far as it says it. Texts are limited in number and length. */
const details = {
  unsaved: Type.Optional(MountUnsaved),
  conflicts: Type.Optional(MountConflicts),
  conditional_writes: Type.Optional(Type.Boolean()),
}
export const HostMountDetails = Type.Object(details)
export type HostMountDetails = Static<typeof HostMountDetails>

/** A mount whose files a pause could not save, all of them or as far as is known: without `unsaved` the guest did not say. */
export const HostUnsavedMount = Type.Object({ id: MountId, unsaved: Type.Optional(MountUnsaved) })
export type HostUnsavedMount = Static<typeof HostUnsavedMount>

/** From the guest agent, which checks the mount itself, at every change and every 30 s. */
export const HostMountReport = Type.Object({
  id: MountId,
  revision: Revision,
  status: MountStatus,
  mount_error: Type.Optional(
    Type.String({ description: 'Why the mount failed and what to do. Present only when status is failed.' }),
  ),
  ...details,
})
export type HostMountReport = Static<typeof HostMountReport>

/** `revision` is the one in force: higher than the requested one if that arrived late, absent if the host has none. */
const MountsReport = { revision: Type.Optional(Type.Integer()), mounts: Type.Array(HostMountReport) }

export const HostVmMountsReport = Type.Object(MountsReport)
export type HostVmMountsReport = Static<typeof HostVmMountsReport>

/**
 * `removed`: the mounts that this request has removed, and those of earlier ones whose files could not be saved, as long as the guest
 * says so. `warning` says what could not be saved before.
 */
export const HostVmMountsApplied = Type.Object({
  ...MountsReport,
  removed: Type.Array(Type.Object({ id: MountId, warning: Type.Optional(Type.String()) })),
})
export type HostVmMountsApplied = Static<typeof HostVmMountsApplied>

/** Of every running VM. */
export const HostMounts = Type.Object({ vms: Type.Array(Type.Object({ id: SandboxId, ...MountsReport })) })
export type HostMounts = Static<typeof HostMounts>
