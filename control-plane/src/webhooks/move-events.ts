/**
 * The webhook event of each move of a sandbox. An operation emits one event, when it has ended and with the status that it
 * ended in; moves that begin one emit none, and neither does a create that failed.
 *
 * There is no action for a VM that was lost. It is reported as what it amounts to: the sandbox no longer runs but can be
 * resumed (`sandbox.pause`, status `error`), or its data is gone (`sandbox.destroy`, status `failed`).
 */
import type { SandboxMove, WebhookAction } from '@warren/protocol'
import { type RawBuilder, sql } from 'kysely'
import { emitInStatement } from './emit.ts'

const MOVE_EVENTS = {
  createDone: 'sandbox.create',
  createFailed: undefined,
  pause: undefined,
  pauseDone: 'sandbox.pause',
  // It keeps running, as if it had never been asked to pause.
  pauseFailed: undefined,
  resume: undefined,
  resumeDone: 'sandbox.resume',
  resumeFailed: 'sandbox.resume',
  forkDone: 'sandbox.fork',
  forkDonePaused: 'sandbox.fork',
  forkFailed: 'sandbox.fork',
  forkAbandoned: undefined,
  vmLost: 'sandbox.pause',
  dataLost: 'sandbox.destroy',
  pauseAgain: undefined,
  destroy: undefined,
  destroyDone: 'sandbox.destroy',
  destroyWithoutVm: 'sandbox.destroy',
} as const satisfies Record<SandboxMove, WebhookAction | undefined>

const COMMON = sql`'id', moved.id, 'name', moved.name`
const STATUS = sql`json_build_object(${COMMON}, 'status', moved.status, 'status_reason', moved.status_reason)`

const DATA = {
  'sandbox.create': sql`json_build_object(${COMMON}, 'shape', moved.shape, 'disk_mib', moved.disk_mib,
    'region', moved.region, 'rootfs', moved.rootfs)`,
  'sandbox.fork': sql`json_build_object(${COMMON}, 'forked_from', moved.forked_from, 'status', moved.status)`,
  'sandbox.pause': STATUS,
  'sandbox.resume': STATUS,
  'sandbox.destroy': STATUS,
} as const

/** An expression for the statement of the move, in which `moved` is the row; undefined if the move emits nothing. */
export function moveEvent(move: SandboxMove): RawBuilder<null> | undefined {
  const action = MOVE_EVENTS[move]
  if (action === undefined) return undefined
  return emitInStatement('moved', action, sql<string | null>`moved.status_audit_id`, DATA[action])
}
