/** The sandbox: its statuses, what may become what, and what goes in and out (spec 2.2, 3.1, 4.1, 4.2). */
import { type Static, Type } from 'typebox'
import { DiskAttachBody } from './disk.ts'
import { EgressRules } from './egress.ts'
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

/** Terminal sandboxes hold nothing and count in no cap; their names are free again. */
export const TERMINAL_STATUSES = ['destroyed', 'failed'] as const satisfies SandboxStatus[]
export const isTerminal = (status: SandboxStatus): boolean => (TERMINAL_STATUSES as readonly string[]).includes(status)

/** A row in one of these must have work under way; a sweep looks for those that do not. */
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
   * `begins` an operation: the fence is raised, so whoever worked on the sandbox before is locked out.
   * Otherwise the move `ends` the operation that holds the fence, and commits only with its number.
   */
  fence: 'begins' | 'ends'
}

/** What may become what: the only place that says so (design 4, rule 1). */
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
  /** A child that nobody was told of, or whose guest did not confirm who it is: never to be served. */
  forkAbandoned: { from: ['forking', 'resuming'], to: 'failed', fence: 'ends' },
  /** The VM is gone but a snapshot or the disk survives. */
  lose: { from: ['running', 'pausing'], to: 'error', fence: 'begins' },
  /** The VM is gone and there is nothing to start from. */
  loseAll: { from: ['running', 'pausing', 'paused', 'error'], to: 'failed', fence: 'begins' },
  /** Its VM was found running although nobody has it (a resume that ended after it was given up): saved again. */
  park: { from: ['paused', 'error'], to: 'pausing', fence: 'begins' },
  destroy: {
    from: ['creating', 'running', 'pausing', 'paused', 'resuming', 'forking', 'error'],
    to: 'destroying',
    fence: 'begins',
  },
  destroyDone: { from: ['destroying'], to: 'destroyed', fence: 'ends' },
  /** A failed sandbox holds nothing, so deleting it is only a change of name. */
  discard: { from: ['failed'], to: 'destroyed', fence: 'begins' },
} as const satisfies Record<string, Move>
export type SandboxMove = keyof typeof SANDBOX_MOVES

export function sandboxCan(move: SandboxMove, status: SandboxStatus): boolean {
  return (SANDBOX_MOVES[move].from as readonly SandboxStatus[]).includes(status)
}

/** "running", or "paused or error": what a 409 says was expected. */
export const expectedStatus = (move: SandboxMove): string => SANDBOX_MOVES[move].from.join(' or ')

export const AUTO_PAUSE_MIN_SECONDS = 60
export const AUTO_PAUSE_MAX_SECONDS = 86_400

/** A DNS label in lower case: it is the hostname and the name inside private networks. */
const SANDBOX_NAME = '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$'
const sandboxName = new RegExp(SANDBOX_NAME)
export const SandboxName = Type.String({ pattern: SANDBOX_NAME })

/** The create body takes any text as a name, so that the refusal can say what a name is. */
export function checkSandboxName(name: string): string | undefined {
  if (sandboxName.test(name)) return undefined
  return 'must be 1 to 63 lower case letters, digits and dashes, with no dash at either end'
}

const AutoPauseSeconds = Type.Integer({ minimum: AUTO_PAUSE_MIN_SECONDS, maximum: AUTO_PAUSE_MAX_SECONDS })
const AutoResume = Type.Boolean({
  description:
    'Requests to the guest of a paused sandbox resume it and wait, instead of being refused. Off by default.',
})

export const SandboxCreateBody = Type.Object({
  shape: Type.String({ description: 'A shape id of GET /v1/shapes.' }),
  rootfs: optionalNull(
    Type.String({
      description: 'A catalog name, or the name or id of a ready template; absent or empty: the default.',
    }),
  ),
  name: optionalNull(Type.String({ description: 'DNS label, unique among your live sandboxes; generated if absent.' })),
  disk_mib: optionalNull(Type.Integer({ minimum: 0, description: '0 or absent: the default of the shape.' })),
  ssh_pubkeys: optionalNull(Type.Array(Type.String())),
  envs: optionalNull(Envs),
  ingress_enabled: optionalNull(Type.Boolean()),
  networks: optionalNull(Type.Array(Type.Object({ id: Type.String() }))),
  disks: optionalNull(Type.Array(DiskAttachBody)),
  egress: optionalNull(EgressRules),
  auto_pause_after_seconds: optionalNull(AutoPauseSeconds),
  auto_resume: optionalNull(AutoResume),
  host_id: optionalNull(Type.String()),
  region: optionalNull(Type.String()),
  bandwidth_quota_bytes: optionalNull(
    Type.Integer({ minimum: 0, maximum: 0, description: 'Cannot be set at create; 0 is tolerated.' }),
  ),
})
export type SandboxCreateBody = Static<typeof SandboxCreateBody>

export const SandboxPatchBody = Type.Object({
  ingress_enabled: optionalNull(Type.Boolean()),
  auto_pause_after_seconds: optionalNull(AutoPauseSeconds),
  disable_auto_pause: optionalNull(Type.Boolean({ description: 'Wins over auto_pause_after_seconds.' })),
  auto_resume: optionalNull(AutoResume),
})
export type SandboxPatchBody = Static<typeof SandboxPatchBody>

export const FORK_COUNT_MAX = 16

/** What is left out is inherited (wire 3). */
export const SandboxForkBody = Type.Object({
  start_paused: optionalNull(Type.Boolean({ description: 'Leave it paused when it is there.' })),
  ssh_pubkeys: optionalNull(Type.Array(Type.String())),
  egress: optionalNull(EgressRules),
  ingress_enabled: optionalNull(Type.Boolean()),
  networks: optionalNull(
    Type.Array(Type.Object({ id: Type.String() }), { description: 'None are inherited; these it joins.' }),
  ),
  envs: optionalNull(Envs),
  count: optionalNull(
    Type.Integer({ minimum: 1, maximum: FORK_COUNT_MAX, description: 'So many at once; the answer is an array.' }),
  ),
  live: optionalNull(
    Type.Boolean({ description: 'Also of a running sandbox: it stands still for a moment and goes on.' }),
  ),
  bandwidth_quota_bytes: Type.Optional(Type.Unknown({ description: 'Refused, whatever the number, 0 included.' })),
})
export type SandboxForkBody = Static<typeof SandboxForkBody>

export const SandboxListQuery = Type.Intersect([PageQuery, Type.Object({ status: Type.Optional(SandboxStatus) })])
export type SandboxListQuery = Static<typeof SandboxListQuery>

export const SandboxByIpParams = Type.Object({ ip: Type.String() })
export type SandboxByIpParams = Static<typeof SandboxByIpParams>

/** One view everywhere: create, get, list, patch, by-ip, pause, resume and fork answer the same (wire 2). */
export const SandboxView = Type.Object({
  id: SandboxId,
  name: Type.String(),
  status: SandboxStatus,
  ip: Type.Optional(Type.String({ description: 'Absent while creating or forking.' })),
  vcpu: Type.Integer(),
  mem_mib: Type.Integer(),
  disk_mib: Type.Integer(),
  shape: Type.String(),
  rootfs: Type.String(),
  region: Type.String(),
  ingress_enabled: Type.Boolean(),
  ingress_url_template: Type.Optional(Type.String({ description: 'Only while ingress is on; `<port>` is literal.' })),
  bandwidth_ingress_bytes: Type.Integer(),
  bandwidth_quota_bytes: Type.Integer(),
  auto_pause_after_seconds: Type.Optional(Type.Integer()),
  auto_resume: Type.Optional(Type.Literal(true, { description: 'Absent when off.' })),
  envs: Type.Array(Type.String(), { description: 'Names only; values never leave.' }),
  ssh_pubkeys: Type.Array(Type.String()),
  egress: Type.Array(Type.String()),
  created_at: Timestamp,
  created_by: UserId,
  spawn_ms: Type.Optional(Type.Number()),
  running_at: Type.Optional(Timestamp),
  paused_at: Type.Optional(Timestamp),
  last_resumed_at: Type.Optional(Timestamp),
  destroyed_at: Type.Optional(Timestamp),
  forked_from: Type.Optional(SandboxId),
  status_reason: Type.Optional(Type.String({ description: 'Why it is error, failed or paused.' })),
})
export type SandboxView = Static<typeof SandboxView>

/** One child, or an array when `count` was given. */
export const SandboxForkView = Type.Union([SandboxView, Type.Array(SandboxView)])
export type SandboxForkView = Static<typeof SandboxForkView>

export const SandboxDeleteView = Type.Object({ id: SandboxId, status: Type.Enum(['destroying', 'destroyed']) })
export type SandboxDeleteView = Static<typeof SandboxDeleteView>
