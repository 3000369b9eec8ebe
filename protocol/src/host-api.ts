/**
 * What the control plane and a host agent say to each other: HTTP/2, on a unix socket on one box (mTLS between
 * boxes later), the control plane being the client. Failures are HostFailure with a 4xx or 5xx status.
 *
 *   GET    /v1/host                     → HostState      asked every second: it is also the heartbeat
 *   POST   /v1/vms                      HostVmCreateBody → HostVmCreated      answers when the guest's agent answered
 *   POST   /v1/vms/{id}/pause           HostVmPauseBody → HostVmPaused        answers when the generation is durable
 *   POST   /v1/vms/{id}/resume          HostVmResumeBody → HostVmResumed      answers when the guest's agent answered
 *   POST   /v1/vms/{id}/forks           HostVmForkBody → HostVmForked         children are there, paused, not yet born
 *   DELETE /v1/vms/{id}?fence=N         → {}             idempotent, also for a VM that was never here
 *   PUT    /v1/vms/{id}/network         HostVmNetworkBody → HostVmNetworkApplied   of a running VM (host-network.ts)
 *   GET    /v1/vms/{id}/network         → HostVmNetworkReport
 *   GET    /v1/networks                 → HostNetworks   of all VMs that ever ran: what is in force, what was counted
 *   POST   /v1/vms/{id}/ports/{port}    a connection to a port of a running VM: 200 when it stands, then its bytes
 *   *      /v1/vms/{id}/guest/{path}    passed through to the guest agent (guest-api.ts), body and answer as streams
 *
 * Every call that changes a VM carries the fence of its operation; a host refuses one lower than it has seen (409
 * `fence_lost`). What passes through to the guest carries none: it changes nothing the control plane remembers.
 *
 * Pause, resume and forks may be asked again with the same fence, as often as wanted and while the first is under
 * way: what was done is not done twice, and the answer is the same. A caller that goes away ends none of the three.
 *
 * A pause that fails leaves the VM running (`pause_failed` says why). A resume that fails leaves the VM paused, with
 * every generation it had, except that a damaged one is set aside: `snapshot_damaged` says which older one the next
 * resume would take, or that none is left. A VM that died without ever having been paused is resumed from its disk.
 *
 * A child of a fork shares its source's bytes by reference: neither cares what becomes of the other. It gets its own
 * identity (hostname, machine-id, SSH host keys, entropy) when it is first resumed; if the guest does not confirm all
 * of it, the child is not served (`identity_failed`).
 */
import { type Static, Type } from 'typebox'
import { HostCounts, HostVmNetwork } from './host-network.ts'
import { SandboxId, Timestamp } from './ids.ts'
import { SelfAction } from './self-signal.ts'

export const HostFailure = Type.Object({
  code: Type.Enum([
    'invalid',
    'not_found',
    'fence_lost',
    /** Memory or the limit of VMs; try another host. */
    'no_capacity',
    /** Not built or imported here, or still being built: the message says which. */
    'image_not_ready',
    'disk_too_small',
    'boot_failed',
    /** The VM is there but its agent does not answer. */
    'guest_unreachable',
    /** The VM is not in a state for this; the message says which it is in. */
    'wrong_state',
    /** Nothing was saved; the VM goes on. */
    'pause_failed',
    /** The newest generation cannot be trusted; the message says what is wrong and what the next resume would take. */
    'snapshot_damaged',
    /** No generation and no disk to start from. */
    'snapshot_missing',
    /** This host cannot run it: another QEMU, kernel, processor. Try another host. */
    'snapshot_incompatible',
    'identity_failed',
    /** Nothing listens on that port of the VM. */
    'port_closed',
    /** So much is open to this VM already that nothing more is opened before some of it is closed. */
    'too_many_streams',
    'internal',
  ]),
  message: Type.String(),
})
export type HostFailure = Static<typeof HostFailure>
export type HostFailureCode = HostFailure['code']

export const HostImage = Type.Object({
  name: Type.String(),
  state: Type.Enum(['ready', 'building', 'failed']),
  /** Content address of the root filesystem; only when ready. */
  digest: Type.Optional(Type.String()),
  size_bytes: Type.Optional(Type.Integer({ description: 'On disk.' })),
  min_disk_mib: Type.Optional(Type.Integer({ description: 'The smallest disk that holds it.' })),
  progress: Type.Optional(Type.String({ description: 'What a build is doing, or why it failed; for people.' })),
})
export type HostImage = Static<typeof HostImage>

/** What a guest asked for itself, cleaned (self-signal.ts). It stays until the VM is paused or deleted. */
export const HostVmSignal = Type.Object({ action: SelfAction, reason: Type.Optional(Type.String()) })
export type HostVmSignal = Static<typeof HostVmSignal>

/**
 * A VM that is here, running or saved. One that died is listed as `dead` until it is resumed or deleted; its disk and
 * its generations are kept as long.
 */
export const HostVm = Type.Object({
  id: SandboxId,
  fence: Type.Integer(),
  state: Type.Enum(['creating', 'running', 'pausing', 'paused', 'resuming', 'dead']),
  reason: Type.Optional(Type.String({ description: 'Why it is dead.' })),
  generation: Type.Optional(Type.Integer({ description: 'The newest that is whole; absent before the first pause.' })),
  signal: Type.Optional(HostVmSignal),
})
export type HostVm = Static<typeof HostVm>

export const HostState = Type.Object({
  id: Type.String({ description: 'An IP address.' }),
  region: Type.String(),
  /** All that may be promised to sandboxes on this machine. */
  mem_mib: Type.Integer(),
  /** The addresses its sandboxes may have. */
  cidr: Type.String(),
  accel: Type.Enum(['kvm', 'tcg']),
  images: Type.Array(HostImage),
  vms: Type.Array(HostVm),
})
export type HostState = Static<typeof HostState>

export const HostVmCreateBody = Type.Object({
  id: SandboxId,
  fence: Type.Integer({ minimum: 1 }),
  vcpu: Type.Integer({ minimum: 1, maximum: 64 }),
  mem_mib: Type.Integer({ minimum: 128 }),
  cpu_quota_pct: Type.Integer({ minimum: 1, description: 'Share of one core for the whole VM, in percent.' }),
  disk_mib: Type.Integer({ minimum: 1 }),
  image: Type.String({ description: 'Name of an image of this host.' }),
  ip: Type.String({ description: 'The address of the sandbox, inside the cidr of the host.' }),
  hostname: Type.String(),
  envs: Type.Record(Type.String(), Type.String()),
  ssh_pubkeys: Type.Array(Type.String()),
  /** In force before the guest runs. */
  network: HostVmNetwork,
  /** After this the host gives up and takes everything back. */
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmCreateBody = Static<typeof HostVmCreateBody>

export const HostVmCreated = Type.Object({
  spawn_ms: Type.Number({ description: 'From the request to the first answer of the guest.' }),
  how: Type.Enum(['pool', 'clone', 'boot']),
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
  dirty_bytes: Type.Integer({ description: 'Memory that differs from the base.' }),
  written_bytes: Type.Integer({ description: 'Memory, disk and device state, as they are on the disk.' }),
  counts: Type.Optional(HostCounts),
})
export type HostVmPaused = Static<typeof HostVmPaused>

/** All of it is put into the guest again: what changed while it was paused takes effect. */
export const HostVmResumeBody = Type.Object({
  fence: Type.Integer({ minimum: 1 }),
  cpu_quota_pct: Type.Integer({ minimum: 1 }),
  ip: Type.String(),
  hostname: Type.String(),
  envs: Type.Record(Type.String(), Type.String()),
  ssh_pubkeys: Type.Array(Type.String()),
  /** In force before the guest goes on. */
  network: HostVmNetwork,
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmResumeBody = Static<typeof HostVmResumeBody>

export const HostVmResumed = Type.Object({
  generation: Type.Optional(Type.Integer({ description: 'Absent when it was booted anew from its disk.' })),
  saved_at: Type.Optional(Timestamp),
  took_ms: Type.Number(),
  how: Type.Enum(['standby', 'restore', 'boot']),
})
export type HostVmResumed = Static<typeof HostVmResumed>

/** `generation`: the one to fork, of a source that is paused or has since gone on. `live`: stop, save, go on. */
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
  generation: Type.Integer({ description: 'Of each child.' }),
  stopped_ms: Type.Optional(Type.Number({ description: 'How long a live source stood still.' })),
})
export type HostVmForked = Static<typeof HostVmForked>

export const HostVmParams = Type.Object({ id: Type.String() })
export const HostFenceQuery = Type.Object({ fence: Type.Integer({ minimum: 1 }) })
