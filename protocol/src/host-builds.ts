/**
 * Builds of templates on a host. A build runs the steps of a Dockerfile in a VM that belongs to no sandbox, and what
 * it leaves is an image. The control plane decides when a build starts, so a host starts it at once.
 *
 *   startBuild     when the record of the attempt is durable. The same attempt can be started again: it runs once
 *   getBuild       at once
 *   readBuildLog   as soon as there are lines after `after`, the attempt has ended, or `wait_ms` have passed
 *   cancelBuild    when the VM is gone. The attempt has failed with this reason; the log remains
 *   deleteBuild    when the VM, the record, the log and the name of the image are gone; also succeeds for an unknown build.
 *                  The files of the image remain for as long as a sandbox needs them
 *
 * An attempt is `running`, then `done` or `failed`. A host agent that is killed loses its running attempts: the next one
 * reports them as failed with the code `interrupted`, and a higher attempt may be started. A lower attempt than the last one
 * is refused (`fence_lost`), a higher one while an attempt is running as well (`wrong_state`).
 *
 * A step whose key is in the cache of `cache_owner` is not run again. The cache is per owner, because what a step downloaded
 * or printed belongs to the user that ran it.
 *
 * LOG. Before its output a step has the line `#2 [2/5] RUN make`, then `#2 DONE 1.2s`, or only `#2 CACHED`. Output of steps is
 * not changed. Lines are numbered from 1 through all attempts. A line is at most 64 KiB; a longer one is split. Beyond `log_bytes` of
 * an attempt output is dropped, which one line reports; the reason of a failure is always the last line. The log is deleted
 * with the build, or seven days after the attempt has ended.
 */
import { type Static, Type } from 'typebox'
import { Envs } from './envs.ts'
import { HostVmNetwork } from './host-network.ts'
import { TemplateId, Timestamp, UserId } from './ids.ts'
import { TEMPLATE_LOG_LINE_MAX_BYTES } from './template.ts'

/** Each step is a layer of the disk. Docker has the same limit. */
export const HOST_BUILD_STEPS_MAX = 127
/** 127 steps with 64 KiB of variables each, and JSON may take six bytes for one. */
export const HOST_BUILD_BODY_MAX_BYTES = 64 * 1024 * 1024
export const HOST_BUILD_LOG_BYTES = 10 * 1024 * 1024
export const HOST_BUILD_LOG_WAIT_MAX_MS = 30_000
export const HOST_BUILD_REASON_MAX_LENGTH = 2_000

const stepState = {
  line: Type.Integer({ minimum: 1, description: 'In the Dockerfile.' }),
  text: Type.String({ description: 'The instruction in one line, for the log.' }),
  env: Type.Record(Type.String(), Type.String(), { description: 'The complete environment.' }),
  user: Type.String({ description: '`name`, `name:group` or their numbers; empty for root.' }),
  workdir: Type.String(),
}

/** A step as the package `dockerfile` plans it, with the same field names. */
export const HostBuildStep = Type.Union([
  Type.Object({
    kind: Type.Literal('run'),
    ...stepState,
    argv: Type.Array(Type.String(), { minItems: 1 }),
    script: Type.Optional(
      Type.Object(
        { path: Type.String(), content: Type.String() },
        { description: 'A program that exists at this path while the step runs.' },
      ),
    ),
  }),
  Type.Object({ kind: Type.Literal('workdir'), ...stepState }),
])
export type HostBuildStep = Static<typeof HostBuildStep>

export const HostBuildBody = Type.Object({
  attempt: Type.Integer({ minimum: 1 }),
  image: Type.String({ description: 'The base: name of an image on this host.' }),
  steps: Type.Array(HostBuildStep, { maxItems: HOST_BUILD_STEPS_MAX }),
  /** Default environment of sandboxes made from the result. */
  env: Envs,
  notes: Type.Array(Type.String(), { description: 'Lines at the beginning of the log.' }),
  cache_owner: UserId,
  no_cache: Type.Boolean({ description: 'Runs every step. The results replace those in the cache.' }),
  vcpu: Type.Integer({ minimum: 1, maximum: 64 }),
  mem_mib: Type.Integer({ minimum: 128 }),
  cpu_quota_pct: Type.Integer({ minimum: 1 }),
  disk_mib: Type.Integer({ minimum: 1, description: 'Size of the disk while the steps run.' }),
  ip: Type.String({ description: 'Address of the VM, within the CIDR of the host. No sandbox has it meanwhile.' }),
  /** In force before the guest runs. */
  network: HostVmNetwork,
  limits: Type.Object({
    steps_ms: Type.Integer({
      minimum: 1,
      description: 'Time for all steps and the start of their VM, without packing.',
    }),
    rootfs_bytes: Type.Integer({ minimum: 1, description: 'Maximum size of the files of the result.' }),
    log_bytes: Type.Integer({ minimum: 1 }),
  }),
  bases: Type.Array(
    Type.Object({
      vcpu: Type.Integer({ minimum: 1, maximum: 64 }),
      mem_mib: Type.Integer({ minimum: 128 }),
      disk_mib: Type.Integer({ minimum: 1 }),
    }),
    { description: 'Sizes of sandboxes whose bases are booted before the build is done.' },
  ),
})
export type HostBuildBody = Static<typeof HostBuildBody>

/** What an attempt that has not ended is doing. */
export const HOST_BUILD_PHASES = ['starting', 'steps', 'packing', 'booting'] as const
export type HostBuildPhase = (typeof HOST_BUILD_PHASES)[number]

export const HOST_BUILD_FAILURES = [
  /** A step ended with another exit code than 0, or could not be started. */
  'step_failed',
  'timeout',
  /** The result exceeds `rootfs_bytes`. */
  'too_large',
  'image_not_ready',
  'cancelled',
  /** The VM of the build exited: its guest agent was killed, or the guest panicked. */
  'vm_died',
  /** The host agent restarted. Only this one is worth another attempt without a change of the Dockerfile. */
  'interrupted',
  'internal',
] as const
export type HostBuildFailure = (typeof HOST_BUILD_FAILURES)[number]

export const HostBuild = Type.Object({
  id: TemplateId,
  attempt: Type.Integer({ minimum: 1 }),
  state: Type.Enum(['running', 'done', 'failed']),
  phase: Type.Optional(Type.Enum(HOST_BUILD_PHASES, { description: 'Of a running attempt.' })),
  steps: Type.Integer({ description: 'Number of steps.' }),
  steps_cached: Type.Integer({ description: 'Steps found in the cache.' }),
  steps_run: Type.Integer({ description: 'Steps that were run successfully.' }),
  failure: Type.Optional(
    Type.Object({
      code: Type.Enum(HOST_BUILD_FAILURES),
      reason: Type.String({ description: 'For the user, in one line.' }),
    }),
  ),
  image: Type.Optional(
    Type.Object(
      { name: Type.String(), digest: Type.String(), size_bytes: Type.Integer(), min_disk_mib: Type.Integer() },
      { description: 'The result, once it is done. `size_bytes` is the size of its files.' },
    ),
  ),
  started_at: Timestamp,
  ended_at: Type.Optional(Timestamp),
})
export type HostBuild = Static<typeof HostBuild>

/** The image of a template on a host: `tpl_<ulid>` becomes `tpl:<ulid>`. */
export const templateImageName = (id: string): string => id.replace('_', ':')
export const isTemplateImage = (name: string): boolean => name.startsWith('tpl:')

export const HostBuildCancelBody = Type.Object({
  attempt: Type.Integer({ minimum: 1 }),
  reason: Type.String({ maxLength: HOST_BUILD_REASON_MAX_LENGTH }),
})
export type HostBuildCancelBody = Static<typeof HostBuildCancelBody>

export const HostBuildLogQuery = Type.Object({
  after: Type.Integer({ minimum: 0, description: 'Number of the last line that the caller has; 0 for all.' }),
  wait_ms: Type.Optional(Type.Integer({ minimum: 0, maximum: HOST_BUILD_LOG_WAIT_MAX_MS })),
})
export type HostBuildLogQuery = Static<typeof HostBuildLogQuery>

export const HostBuildLogLine = Type.Object({
  line: Type.Integer({ minimum: 1 }),
  attempt: Type.Integer({ minimum: 1 }),
  ts: Timestamp,
  stream: Type.String({
    maxLength: TEMPLATE_LOG_LINE_MAX_BYTES,
    description: 'With its line ending, unless it is a part of a longer line.',
  }),
})
export type HostBuildLogLine = Static<typeof HostBuildLogLine>

/** Not necessarily all lines that exist: at most about a MiB. */
export const HostBuildLog = Type.Object({
  lines: Type.Array(HostBuildLogLine),
  ended: Type.Boolean({ description: 'The last attempt has ended, and `lines` reaches the end of its log.' }),
})
export type HostBuildLog = Static<typeof HostBuildLog>
