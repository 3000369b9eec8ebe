/**
 * The API of a host agent. The control plane is its client: HTTP/2 on a unix socket of the same machine. HOST_ROUTES at
 * the end of this file lists the routes; failures are HostFailure with the status of HOST_FAILURE_STATUS.
 *
 * When a response is sent:
 *
 *   getHost                 at once; the control plane asks every second, so it is also the heartbeat
 *   createVm, resumeVm      when the guest agent has answered
 *   pauseVm                 when the generation is durable
 *   forkVm                  when the children exist, paused and still without an identity
 *   prepareBase             when the base is ready, which may take minutes; it is built to its end if the caller disconnects
 *   resizeVm                when the block device and the file system in it have the size
 *   deleteVm                when the VM is gone; also succeeds for a VM that never existed here
 *   connectToPort           200 when the TCP connection is established; then both bodies are its bytes
 *   callGuest               when the guest agent responds (guest-routes.ts); both bodies are streamed
 *   startBuild and others   see host-builds.ts
 *   setVmMounts             see host-disks.ts
 *
 * kit/src/testing/host-contract.ts holds this as tests, for the host agent and for the fake host of the control plane's tests.
 *
 * Every request that changes a VM carries the fence of its operation. A host refuses a fence lower than the highest it
 * has seen for that VM (409 `fence_lost`). Requests to the guest carry none: they change nothing that the control plane
 * stores.
 *
 * Pause, resume and fork can be repeated with the same fence, also while the first request is still running: the work
 * is done once and every request gets the same response (a fork repeated after its end leaves out `stopped_ms`). A
 * paused VM answers a pause with a higher fence like one that is repeated. A request that is refused does not raise the
 * fence of the VM. None of the three is cancelled when its caller disconnects.
 *
 * A pause that fails leaves the VM running, and `pause_failed` says why. A resume that fails leaves the VM paused with
 * all its generations, except that a damaged one is set aside: `snapshot_damaged` names the older generation that the
 * next resume will use, or says that there is none. A VM that died before its first pause is resumed from its disk.
 *
 * Create, fork, resize, prepareBase and startBuild are refused with `disk_full` while the disk of the host has too little space. A
 * pause that does not fit fails with `pause_failed`. Guests that write to a disk that is nearly full are stopped, and continue
 * when there is space (`waits_for_disk`).
 *
 * A resize grows the disk of a running VM. It can be repeated, also with a higher fence: a disk that has the size already is
 * left alone. It survives the death of every process involved in that the next one for the same size completes it. A resize
 * that is refused has changed nothing that the guest can see.
 *
 * A fork shares the bytes of its source by reference; afterwards neither depends on the other. It gets its own identity
 * (hostname, machine-id, SSH host keys, entropy) when it is first resumed. If the guest does not confirm all of it, the
 * resume fails with `identity_failed`.
 */
import { type Static, type TObject, Type } from 'typebox'
import {
  HOST_BUILD_BODY_MAX_BYTES,
  HostBuild,
  HostBuildBody,
  HostBuildCancelBody,
  HostBuildLog,
  HostBuildLogQuery,
} from './host-builds.ts'
import {
  HostMounts,
  HostUnsavedMount,
  HostVmMounts,
  HostVmMountsApplied,
  HostVmMountsBody,
  HostVmMountsReport,
} from './host-disks.ts'
import { HostMetrics } from './host-metrics.ts'
import {
  HostCounts,
  HostNetworks,
  HostVmNetwork,
  HostVmNetworkApplied,
  HostVmNetworkBody,
  HostVmNetworkReport,
} from './host-network.ts'
import { HostVmMetrics, HostVmSeries } from './host-vm-metrics.ts'
import { SandboxId, Timestamp } from './ids.ts'
import type { Route } from './route-table.ts'
import { SPAWN_KINDS } from './sandbox.ts'
import { SelfAction } from './self-signal.ts'

export const HostFailure = Type.Object({
  code: Type.Enum([
    'invalid',
    'not_found',
    'fence_lost',
    /** Not enough memory, or too many VMs. Another host may have room. */
    'no_capacity',
    /** Too little space on the disk of the host, and nothing was changed; the message has the numbers. */
    'disk_full',
    /** Not built or imported here, or still being built; the message says which. */
    'image_not_ready',
    'disk_too_small',
    'boot_failed',
    /** The VM exists but its guest agent does not respond. */
    'guest_unreachable',
    /** The state of the VM does not allow it; the message names the state. */
    'wrong_state',
    /** Nothing was saved and the VM keeps running. */
    'pause_failed',
    /** The newest generation is corrupt; the message says what is wrong and which one the next resume will use. */
    'snapshot_damaged',
    /** There is neither a generation nor a disk to start from. */
    'snapshot_missing',
    /** Saved with another QEMU, kernel or processor. Another host may be able to run it. */
    'snapshot_incompatible',
    'identity_failed',
    /** Nothing listens on that port of the VM. */
    'port_closed',
    /** The limit of concurrent streams to this VM is reached; close some first. */
    'too_many_streams',
    /** The host cannot mount disks (`disks` in its state). */
    'disks_unavailable',
    'internal',
  ]),
  message: Type.String(),
})
export type HostFailure = Static<typeof HostFailure>
export type HostFailureCode = HostFailure['code']

export const HOST_FAILURE_STATUS = {
  invalid: 400,
  not_found: 404,
  fence_lost: 409,
  no_capacity: 503,
  disk_full: 503,
  image_not_ready: 503,
  disk_too_small: 400,
  boot_failed: 500,
  guest_unreachable: 502,
  wrong_state: 409,
  pause_failed: 500,
  snapshot_damaged: 500,
  snapshot_missing: 500,
  snapshot_incompatible: 503,
  identity_failed: 500,
  port_closed: 502,
  too_many_streams: 429,
  disks_unavailable: 503,
  internal: 500,
} as const satisfies Record<HostFailureCode, number>

export const HostImage = Type.Object({
  name: Type.String(),
  state: Type.Enum(['ready', 'building', 'failed']),
  digest: Type.Optional(Type.String({ description: 'Content address of the root filesystem, once ready.' })),
  size_bytes: Type.Optional(Type.Integer({ description: 'Size on disk.' })),
  min_disk_mib: Type.Optional(Type.Integer({ description: 'The smallest disk that can hold the image.' })),
  progress: Type.Optional(Type.String({ description: 'Progress of the build, or why it failed, as text for people.' })),
})
export type HostImage = Static<typeof HostImage>

/** A sanitized self-signal of the guest (self-signal.ts). Reported until the VM is paused or deleted. */
export const HostVmSignal = Type.Object({ action: SelfAction, reason: Type.Optional(Type.String()) })
export type HostVmSignal = Static<typeof HostVmSignal>

/**
 * A VM on this host, running or saved. A VM that died is listed as `dead` until it is resumed or deleted; until then its
 * disk and generations are retained.
 */
export const HostVm = Type.Object({
  id: SandboxId,
  fence: Type.Integer(),
  state: Type.Enum(['creating', 'running', 'pausing', 'paused', 'resuming', 'dead']),
  reason: Type.Optional(Type.String({ description: 'Why the VM is dead.' })),
  generation: Type.Optional(
    Type.Integer({ description: 'The newest complete generation; absent before the first pause.' }),
  ),
  signal: Type.Optional(HostVmSignal),
  disk_mib: Type.Optional(Type.Integer({ description: 'Absent while the VM is being created.' })),
  waits_for_disk: Type.Optional(
    Type.Boolean({ description: 'The guest is stopped until the disk of the host has space again.' }),
  ),
  grow_pending: Type.Optional(
    Type.Boolean({ description: 'A resize was interrupted: the file system may be smaller than the disk. Repeat it.' }),
  ),
})
export type HostVm = Static<typeof HostVm>

/** The volume of the data directory. */
export const HostVolume = Type.Object({
  total_mib: Type.Integer(),
  free_mib: Type.Integer(),
  floor_mib: Type.Integer({ description: 'Must stay free: below it nothing is started that needs space.' }),
  sandboxes_mib: Type.Integer({ description: 'Taken by disks and saved states of sandboxes, some seconds ago.' }),
})
export type HostVolume = Static<typeof HostVolume>

export const HostState = Type.Object({
  id: Type.String({ description: 'An IP address.' }),
  region: Type.String(),
  mem_mib: Type.Integer({ description: 'Memory available for sandboxes.' }),
  cidr: Type.String({ description: 'Addresses that its sandboxes can get.' }),
  accel: Type.Enum(['kvm', 'tcg']),
  disks: Type.Boolean({ description: 'Whether disks can be mounted in its VMs.' }),
  volume: HostVolume,
  images: Type.Array(HostImage),
  vms: Type.Array(HostVm),
  builds: Type.Array(HostBuild, { description: 'The last attempt of every build that was not deleted.' }),
})
export type HostState = Static<typeof HostState>

export const HostVmCreateBody = Type.Object({
  id: SandboxId,
  fence: Type.Integer({ minimum: 1 }),
  vcpu: Type.Integer({ minimum: 1, maximum: 64 }),
  mem_mib: Type.Integer({ minimum: 128 }),
  cpu_quota_pct: Type.Integer({ minimum: 1, description: 'CPU limit of the whole VM, in percent of one core.' }),
  disk_mib: Type.Integer({ minimum: 1 }),
  image: Type.String({ description: 'Name of an image on this host.' }),
  ip: Type.String({ description: 'Address of the sandbox, within the CIDR of the host.' }),
  hostname: Type.String(),
  envs: Type.Record(Type.String(), Type.String()),
  ssh_pubkeys: Type.Array(Type.String()),
  /** In force before the guest runs. */
  network: HostVmNetwork,
  /** Ignored by a host that cannot mount disks. */
  mounts: Type.Optional(HostVmMounts),
  limit_ms: Type.Integer({ minimum: 1, description: 'After this time the host gives up and undoes every step.' }),
})
export type HostVmCreateBody = Static<typeof HostVmCreateBody>

export const HostVmCreated = Type.Object({
  spawn_ms: Type.Number({ description: 'Time from the request to the first response of the guest.' }),
  how: Type.Enum(SPAWN_KINDS),
})
export type HostVmCreated = Static<typeof HostVmCreated>

export const HostVmPauseBody = Type.Object({
  fence: Type.Integer({ minimum: 1 }),
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmPauseBody = Static<typeof HostVmPauseBody>

export const HostVmPaused = Type.Object({
  generation: Type.Integer({ minimum: 1 }),
  took_ms: Type.Number(),
  dirty_bytes: Type.Integer({ description: 'Size of the memory that differs from the base.' }),
  written_bytes: Type.Integer({ description: 'Size on disk of the saved memory, disk and device state.' }),
  counts: Type.Optional(HostCounts),
  unsaved_mounts: Type.Optional(
    Type.Array(HostUnsavedMount, { description: 'Mounts whose files could not all be saved before.' }),
  ),
})
export type HostVmPaused = Static<typeof HostVmPaused>

/** All of it is applied to the guest again, so changes made while it was paused take effect. */
export const HostVmResumeBody = Type.Object({
  fence: Type.Integer({ minimum: 1 }),
  cpu_quota_pct: Type.Integer({ minimum: 1 }),
  ip: Type.String(),
  hostname: Type.String(),
  envs: Type.Record(Type.String(), Type.String()),
  ssh_pubkeys: Type.Array(Type.String()),
  /** In force before the guest runs. */
  network: HostVmNetwork,
  /** Ignored by a host that cannot mount disks. Without them the VM has none, whatever it had before. */
  mounts: Type.Optional(HostVmMounts),
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmResumeBody = Static<typeof HostVmResumeBody>

export const HostVmResumed = Type.Object({
  generation: Type.Optional(Type.Integer({ description: 'Absent when the VM was booted from its disk.' })),
  saved_at: Type.Optional(Timestamp),
  took_ms: Type.Number(),
  how: Type.Enum(['standby', 'restore', 'boot']),
  limits: Type.Optional(
    Type.Array(Type.String(), { description: 'What the guest cannot do, because its agent is older than the host.' }),
  ),
})
export type HostVmResumed = Static<typeof HostVmResumed>

/**
 * `generation`: fork this saved generation; the source may be paused or already running again.
 * `live`: stop the running source, save it and let it continue.
 */
export const HostVmForkBody = Type.Object({
  generation: Type.Optional(Type.Integer({ minimum: 1 })),
  live: Type.Optional(Type.Boolean()),
  children: Type.Array(Type.Object({ id: SandboxId, fence: Type.Integer({ minimum: 1 }) }), {
    minItems: 1,
    maxItems: 16,
  }),
})
export type HostVmForkBody = Static<typeof HostVmForkBody>

export const HostVmForked = Type.Object({
  generation: Type.Integer({ description: 'Generation of each child.' }),
  stopped_ms: Type.Optional(Type.Number({ description: 'How long a live source was stopped.' })),
})
export type HostVmForked = Static<typeof HostVmForked>

export const HostVmResizeBody = Type.Object({
  fence: Type.Integer({ minimum: 1 }),
  disk_mib: Type.Integer({ minimum: 1 }),
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmResizeBody = Static<typeof HostVmResizeBody>

export const HostVmResized = Type.Object({ disk_mib: Type.Integer({ description: 'Size of the disk now.' }) })
export type HostVmResized = Static<typeof HostVmResized>

export const HostSnapshotsCollected = Type.Object({
  removed: Type.Integer({ description: 'Number of objects removed.' }),
  bytes: Type.Integer({ description: 'Size of the removed objects.' }),
})
export type HostSnapshotsCollected = Static<typeof HostSnapshotsCollected>

export const HOST_BASE_STATES = ['ready', 'building', 'superseded', 'damaged'] as const

/** A VM that was booted once and saved, for one image, shape and disk size. New VMs are clones of it. */
export const HostBase = Type.Object({
  key: Type.String({
    description: 'Names it on this host; the same for the same image, shape, disk, kernel and QEMU.',
  }),
  image: Type.Optional(Type.String({ description: 'Name of the image; absent if it is not known any more.' })),
  vcpu: Type.Integer(),
  mem_mib: Type.Integer(),
  disk_mib: Type.Integer({ description: 'A VM with a larger disk starts from it as well.' }),
  state: Type.Enum(HOST_BASE_STATES, {
    description:
      '`superseded`: of an older image, kernel, QEMU or guest agent; VMs that were made from it still need it. ' +
      '`damaged`: its files do not match their checksums; VMs that were made from it cannot be resumed from disk.',
  }),
  progress: Type.Optional(Type.String({ description: 'Of a build, as text for people.' })),
  size_bytes: Type.Integer({ description: 'Size on disk, without the image.' }),
  vms: Type.Integer({ description: 'Number of VMs on this host, running or saved, that were made from it.' }),
  made_at: Type.Optional(Timestamp),
})
export type HostBase = Static<typeof HostBase>

export const HostBases = Type.Object({ bases: Type.Array(HostBase) })
export type HostBases = Static<typeof HostBases>

export const HostBaseBody = Type.Object({
  image: Type.String({ description: 'Name of an image on this host.' }),
  vcpu: Type.Integer({ minimum: 1, maximum: 64 }),
  mem_mib: Type.Integer({ minimum: 128 }),
  disk_mib: Type.Integer({ minimum: 1 }),
})
export type HostBaseBody = Static<typeof HostBaseBody>

export const HostBasePrepared = Type.Object({
  key: Type.String(),
  booted: Type.Boolean({ description: 'False if the base existed before, here or in another data directory.' }),
  took_ms: Type.Number(),
})
export type HostBasePrepared = Static<typeof HostBasePrepared>

export const HostFenceQuery = Type.Object({ fence: Type.Integer({ minimum: 1 }) })

/**
 * One route of the host API. Without `response` the handler serves the stream: its bodies are not JSON. Path patterns
 * are described in route-table.ts.
 */
export type HostRoute = Route & { query?: TObject; body?: TObject; response?: TObject; bodyMaxBytes?: number }

export const HOST_ROUTES = {
  getHost: { method: 'GET', path: '/v1/host', response: HostState },
  getMetrics: { method: 'GET', path: '/v1/metrics', response: HostMetrics },
  createVm: { method: 'POST', path: '/v1/vms', body: HostVmCreateBody, response: HostVmCreated },
  pauseVm: { method: 'POST', path: '/v1/vms/:id/pause', body: HostVmPauseBody, response: HostVmPaused },
  resumeVm: { method: 'POST', path: '/v1/vms/:id/resume', body: HostVmResumeBody, response: HostVmResumed },
  forkVm: { method: 'POST', path: '/v1/vms/:id/forks', body: HostVmForkBody, response: HostVmForked },
  resizeVm: { method: 'POST', path: '/v1/vms/:id/resize', body: HostVmResizeBody, response: HostVmResized },
  deleteVm: { method: 'DELETE', path: '/v1/vms/:id', query: HostFenceQuery, response: Type.Object({}) },
  /** Of a running VM (host-network.ts). */
  setVmNetwork: {
    method: 'PUT',
    path: '/v1/vms/:id/network',
    body: HostVmNetworkBody,
    response: HostVmNetworkApplied,
  },
  getVmNetwork: { method: 'GET', path: '/v1/vms/:id/network', response: HostVmNetworkReport },
  /** Of every VM that ever ran: the revision in force and the byte counts. */
  listNetworks: { method: 'GET', path: '/v1/networks', response: HostNetworks },
  /** Of a running VM (host-disks.ts). */
  setVmMounts: { method: 'PUT', path: '/v1/vms/:id/mounts', body: HostVmMountsBody, response: HostVmMountsApplied },
  getVmMounts: { method: 'GET', path: '/v1/vms/:id/mounts', response: HostVmMountsReport },
  listMounts: { method: 'GET', path: '/v1/mounts', response: HostMounts },
  /** Of a running VM (host-vm-metrics.ts). */
  getVmMetrics: { method: 'GET', path: '/v1/vms/:id/metrics', response: HostVmMetrics },
  /** Of a VM in any state. */
  getVmSeries: { method: 'GET', path: '/v1/vms/:id/metrics/series', response: HostVmSeries },
  /** Removes snapshot objects that no manifest names. */
  collectSnapshots: { method: 'POST', path: '/v1/snapshots/collect', response: HostSnapshotsCollected },
  listBases: { method: 'GET', path: '/v1/bases', response: HostBases },
  prepareBase: { method: 'POST', path: '/v1/bases', body: HostBaseBody, response: HostBasePrepared },
  startBuild: {
    method: 'PUT',
    path: '/v1/builds/:id',
    body: HostBuildBody,
    bodyMaxBytes: HOST_BUILD_BODY_MAX_BYTES,
    response: HostBuild,
  },
  getBuild: { method: 'GET', path: '/v1/builds/:id', response: HostBuild },
  readBuildLog: { method: 'GET', path: '/v1/builds/:id/log', query: HostBuildLogQuery, response: HostBuildLog },
  cancelBuild: { method: 'POST', path: '/v1/builds/:id/cancel', body: HostBuildCancelBody, response: HostBuild },
  deleteBuild: { method: 'DELETE', path: '/v1/builds/:id', response: Type.Object({}) },
  connectToPort: { method: 'POST', path: '/v1/vms/:id/ports/:port' },
  callGuest: { method: '*', path: '/v1/vms/:id/guest/*' },
} as const satisfies Record<string, HostRoute>
export type HostRouteName = keyof typeof HOST_ROUTES
