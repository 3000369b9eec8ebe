/** The sandbox: its statuses, the allowed transitions, and the bodies of its requests and responses. */
import { type Static, Type } from 'typebox'
import { DISK_MOUNTS_MAX, DiskAttachBody } from './disk.ts'
import { EgressRules, EgressWarnings } from './egress.ts'
import { PageQuery } from './envelope.ts'
import { Envs } from './envs.ts'
import { SandboxId, Timestamp, UserId } from './ids.ts'
import { optionalNull } from './optional-null.ts'

export const SANDBOX_STATUSES = [
  'creating',
  'running',
  'pausing',
  'paused',
  'resuming',
  'forking',
  'error',
  'destroying',
  'destroyed',
  'failed',
] as const
export type SandboxStatus = (typeof SANDBOX_STATUSES)[number]
export const SandboxStatus = Type.Enum(SANDBOX_STATUSES)

/** A terminal sandbox uses no resources, counts towards no limit and frees its name. */
export const TERMINAL_STATUSES = ['destroyed', 'failed'] as const satisfies SandboxStatus[]
export const isTerminal = (status: SandboxStatus): boolean => (TERMINAL_STATUSES as readonly string[]).includes(status)

/** A row in one of these must have an operation in progress; a sweep looks for rows that do not. */
export const TRANSITIONAL_STATUSES = [
  'creating',
  'pausing',
  'resuming',
  'forking',
  'destroying',
] as const satisfies SandboxStatus[]

type Move = {
  from: readonly SandboxStatus[]
  to: SandboxStatus
  /**
   * `begins`: the move begins an operation and increments the fence, which locks out every earlier operation.
   * `ends`: the move ends the operation that holds the fence, and commits only with its number.
   */
  fence: 'begins' | 'ends'
}

/** Every allowed transition of a sandbox. sandboxes/move.ts in the control plane is the only writer of a status. */
export const SANDBOX_MOVES = {
  createDone: { from: ['creating'], to: 'running', fence: 'ends' },
  createFailed: { from: ['creating'], to: 'failed', fence: 'ends' },
  pause: { from: ['running'], to: 'pausing', fence: 'begins' },
  pauseDone: { from: ['pausing'], to: 'paused', fence: 'ends' },
  pauseFailed: { from: ['pausing'], to: 'running', fence: 'ends' },
  resume: { from: ['paused', 'error'], to: 'resuming', fence: 'begins' },
  resumeDone: { from: ['resuming'], to: 'running', fence: 'ends' },
  resumeFailed: { from: ['resuming'], to: 'error', fence: 'ends' },
  forkDone: { from: ['forking'], to: 'running', fence: 'ends' },
  forkDonePaused: { from: ['forking'], to: 'paused', fence: 'ends' },
  forkFailed: { from: ['forking'], to: 'error', fence: 'ends' },
  /** A fork that no response has named yet, or whose guest did not confirm its identity. It must never be served. */
  forkAbandoned: { from: ['forking', 'resuming'], to: 'failed', fence: 'ends' },
  /** The VM no longer runs, but its snapshot or its disk still exists. */
  vmLost: { from: ['running', 'pausing'], to: 'error', fence: 'begins' },
  /** The VM and its data no longer exist, so there is nothing to resume from. */
  dataLost: { from: ['running', 'pausing', 'paused', 'error'], to: 'failed', fence: 'begins' },
  /** The VM was found running, because the host completed a resume that had been given up. It is paused again. */
  pauseAgain: { from: ['paused', 'error'], to: 'pausing', fence: 'begins' },
  destroy: {
    from: ['creating', 'running', 'pausing', 'paused', 'resuming', 'forking', 'error'],
    to: 'destroying',
    fence: 'begins',
  },
  destroyDone: { from: ['destroying'], to: 'destroyed', fence: 'ends' },
  /** A failed sandbox has no VM and uses no resources, so deleting it only changes the status. */
  destroyWithoutVm: { from: ['failed'], to: 'destroyed', fence: 'begins' },
} as const satisfies Record<string, Move>
export type SandboxMove = keyof typeof SANDBOX_MOVES

export function sandboxCan(move: SandboxMove, status: SandboxStatus): boolean {
  return (SANDBOX_MOVES[move].from as readonly SandboxStatus[]).includes(status)
}

/** "running", or "paused or error": the expected statuses in the message of a 409. */
export const expectedStatus = (move: SandboxMove): string => SANDBOX_MOVES[move].from.join(' or ')

export const AUTO_PAUSE_MIN_SECONDS = 60
export const AUTO_PAUSE_MAX_SECONDS = 86_400

/** A DNS label in lower case: it is also the hostname and the name inside private networks. */
const SANDBOX_NAME = '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'
const sandboxName = new RegExp(SANDBOX_NAME)
export const SandboxName = Type.String({ pattern: SANDBOX_NAME })

/** The create body accepts any text as a name, so that the error can explain the rule. */
export function checkSandboxName(name: string): string | undefined {
  if (sandboxName.test(name)) return undefined
  return 'must be 1 to 63 lower case letters, digits and dashes, with no dash at either end'
}

const AutoPauseSeconds = Type.Integer({
  minimum: AUTO_PAUSE_MIN_SECONDS,
  maximum: AUTO_PAUSE_MAX_SECONDS,
  description: 'Pause the sandbox after this many seconds without use.',
})
const AutoResume = Type.Boolean({
  description: 'Resume the sandbox automatically when a request needs it while it is paused. Off by default.',
})

export const SandboxCreateBody = Type.Object({
  shape: Type.String({ description: 'Id of a shape, see GET /v1/shapes.' }),
  rootfs: optionalNull(
    Type.String({
      description: 'Root filesystem: a name of GET /v1/rootfs, or the name or id of a ready template. Optional.',
    }),
  ),
  name: optionalNull(
    Type.String({ description: 'DNS label, unique among your sandboxes that are not deleted. Generated if absent.' }),
  ),
  disk_mib: optionalNull(Type.Integer({ minimum: 0, description: 'Disk size. Defaults to that of the shape.' })),
  ssh_pubkeys: optionalNull(Type.Array(Type.String(), { description: 'OpenSSH public keys that can log in as root.' })),
  envs: optionalNull(Envs),
  ingress_enabled: optionalNull(Type.Boolean({ description: 'Serve the ports of the sandbox on public host names.' })),
  networks: optionalNull(
    Type.Array(Type.Object({ id: Type.String({ description: 'Network id or name.' }) }), {
      description: 'Private networks to join.',
    }),
  ),
  disks: optionalNull(Type.Array(DiskAttachBody, { maxItems: DISK_MOUNTS_MAX })),
  egress: optionalNull(EgressRules),
  auto_pause_after_seconds: optionalNull(AutoPauseSeconds),
  auto_resume: optionalNull(AutoResume),
  host_id: optionalNull(Type.String({ description: 'Create the sandbox on this host.' })),
  region: optionalNull(Type.String()),
  bandwidth_quota_bytes: optionalNull(
    Type.Integer({ minimum: 0, maximum: 0, description: 'The quota cannot be set here; only 0 is accepted.' }),
  ),
})
export type SandboxCreateBody = Static<typeof SandboxCreateBody>

export const SandboxPatchBody = Type.Object({
  ingress_enabled: optionalNull(Type.Boolean({ description: 'Serve the ports of the sandbox on public host names.' })),
  auto_pause_after_seconds: optionalNull(AutoPauseSeconds),
  disable_auto_pause: optionalNull(
    Type.Boolean({ description: 'Turn auto-pause off. Takes precedence over auto_pause_after_seconds.' }),
  ),
  auto_resume: optionalNull(AutoResume),
})
export type SandboxPatchBody = Static<typeof SandboxPatchBody>

export const FORK_COUNT_MAX = 16

/** Absent fields are inherited from the source. */
export const SandboxForkBody = Type.Object({
  start_paused: optionalNull(Type.Boolean({ description: 'Leave the fork paused instead of starting it.' })),
  ssh_pubkeys: optionalNull(Type.Array(Type.String())),
  egress: optionalNull(EgressRules),
  ingress_enabled: optionalNull(Type.Boolean()),
  networks: optionalNull(
    Type.Array(Type.Object({ id: Type.String() }), {
      description: 'Private networks to join. The networks of the source are not inherited.',
    }),
  ),
  envs: optionalNull(Envs),
  count: optionalNull(
    Type.Integer({
      minimum: 1,
      maximum: FORK_COUNT_MAX,
      description: 'Number of forks. With `count`, the response is an array.',
    }),
  ),
  live: optionalNull(
    Type.Boolean({ description: 'Also fork a running sandbox: it is stopped briefly and then continues.' }),
  ),
  bandwidth_quota_bytes: Type.Optional(Type.Unknown({ description: 'Not accepted; the quota cannot be set here.' })),
})
export type SandboxForkBody = Static<typeof SandboxForkBody>

export const SandboxListQuery = Type.Intersect([PageQuery, Type.Object({ status: Type.Optional(SandboxStatus) })])
export type SandboxListQuery = Static<typeof SandboxListQuery>

export const SandboxByIpParams = Type.Object({ ip: Type.String() })
export type SandboxByIpParams = Static<typeof SandboxByIpParams>

export const SPAWN_KINDS = ['pool', 'clone', 'boot'] as const
export type SpawnKind = (typeof SPAWN_KINDS)[number]

/** The same view in every response that contains a sandbox. */
export const SandboxView = Type.Object({
  id: SandboxId,
  name: Type.String(),
  status: SandboxStatus,
  ip: Type.Optional(Type.String({ description: 'Address of the sandbox. Absent while creating or forking.' })),
  vcpu: Type.Integer(),
  mem_mib: Type.Integer(),
  disk_mib: Type.Integer(),
  shape: Type.String(),
  rootfs: Type.String({ description: 'As given at the creation: the name of a root filesystem or a template.' }),
  template_id: Type.Optional(
    Type.String({
      description: 'The template it was made from. Names of templates may repeat, so `rootfs` is not enough.',
    }),
  ),
  region: Type.String(),
  ingress_enabled: Type.Boolean(),
  ingress_url_template: Type.Optional(
    Type.String({
      description: 'URL of a port: replace the literal `<port>` by its number. Present only while ingress is enabled.',
    }),
  ),
  bandwidth_ingress_bytes: Type.Integer({ description: 'Bytes received since creation.' }),
  bandwidth_quota_bytes: Type.Integer({ description: 'Outbound bytes allowed in total; -1 for no limit.' }),
  auto_pause_after_seconds: Type.Optional(Type.Integer()),
  auto_resume: Type.Optional(Type.Literal(true, { description: 'Absent when it is off.' })),
  envs: Type.Array(Type.String(), { description: 'Names of the environment variables. Values are never returned.' }),
  ssh_pubkeys: Type.Array(Type.String()),
  egress: Type.Array(Type.String()),
  warnings: EgressWarnings,
  created_at: Timestamp,
  created_by: UserId,
  spawn_ms: Type.Optional(Type.Number({ description: 'How long the creation took on the host.' })),
  spawn_kind: Type.Optional(
    Type.Enum(SPAWN_KINDS, {
      description:
        'How the sandbox was created; only in the response to the create. `pool`: from a VM that was waiting for it. `clone`: from the saved base of its shape and image. `boot`: that base had to be booted first, which takes many seconds, once for each shape, image and disk size.',
    }),
  ),
  running_at: Type.Optional(Timestamp),
  paused_at: Type.Optional(Timestamp),
  last_resumed_at: Type.Optional(Timestamp),
  destroyed_at: Type.Optional(Timestamp),
  forked_from: Type.Optional(SandboxId),
  status_reason: Type.Optional(
    Type.String({
      description:
        'Why the sandbox is in its status, for example why it is error, failed or paused. A running sandbox has one after a pause that failed, or after a resume from an older snapshot.',
    }),
  ),
})
export type SandboxView = Static<typeof SandboxView>

/** One fork, or an array when `count` is given. */
export const SandboxForkView = Type.Union([SandboxView, Type.Array(SandboxView)])
export type SandboxForkView = Static<typeof SandboxForkView>

export const SandboxDeleteView = Type.Object({ id: SandboxId, status: Type.Enum(['destroying', 'destroyed']) })
export type SandboxDeleteView = Static<typeof SandboxDeleteView>
