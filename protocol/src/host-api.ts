/**
 * What the control plane and a host agent say to each other: HTTP/2, on a unix socket on one box (mTLS between
 * boxes later), the control plane being the client. Failures are HostFailure with a 4xx or 5xx status.
 *
 *   GET    /v1/host                     → HostState      asked every second: it is also the heartbeat
 *   POST   /v1/vms                      HostVmCreateBody → HostVmCreated      answers when the guest's agent answered
 *   DELETE /v1/vms/{id}?fence=N         → {}             idempotent, also for a VM that was never here
 *   *      /v1/vms/{id}/guest/{path}    passed through to the guest agent (guest-api.ts), body and answer as streams
 *
 * Every call that changes a VM carries the fence of its operation; a host refuses one lower than it has seen (409
 * `fence_lost`). What passes through to the guest carries none: it changes nothing the control plane remembers.
 */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'

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

/** A VM that is here. One that died is listed as `dead` until the control plane deletes it. */
export const HostVm = Type.Object({
  id: SandboxId,
  fence: Type.Integer(),
  state: Type.Enum(['creating', 'running', 'dead']),
  reason: Type.Optional(Type.String({ description: 'Why it is dead.' })),
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
  /** After this the host gives up and takes everything back. */
  limit_ms: Type.Integer({ minimum: 1 }),
})
export type HostVmCreateBody = Static<typeof HostVmCreateBody>

export const HostVmCreated = Type.Object({
  spawn_ms: Type.Number({ description: 'From the request to the first answer of the guest.' }),
  how: Type.Enum(['pool', 'clone', 'boot']),
})
export type HostVmCreated = Static<typeof HostVmCreated>

export const HostVmParams = Type.Object({ id: Type.String() })
export const HostFenceQuery = Type.Object({ fence: Type.Integer({ minimum: 1 }) })

/** What of the guest agent may be reached through the host agent, and by which methods. */
export const HOST_GUEST_ROUTES = {
  exec: ['POST'],
  files: ['GET', 'PUT'],
  metrics: ['GET'],
  identity: ['POST'],
  grow: ['POST'],
  sync: ['POST'],
} as const satisfies Record<string, readonly string[]>
export type HostGuestRoute = keyof typeof HOST_GUEST_ROUTES
