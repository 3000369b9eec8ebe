/**
 * Changes settings of a sandbox, in every state but the terminal ones. A new idle limit counts from now. This gives a
 * sandbox that was idle for longer the whole new limit, and auto-pause relies on it: processes may have recorded uses
 * that were far from the end of the old limit (docs/decisions/0021-auto-pause-protocol.md).
 */
import { wrongState } from '@warren/kit/failure'
import { isTerminal, type SandboxPatchBody, type SandboxStatus, TERMINAL_STATUSES } from '@warren/protocol'
import { sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { emitInStatement } from '../webhooks/emit.ts'

export async function patchSandbox(deps: Deps, sandbox: SandboxRow, body: SandboxPatchBody): Promise<SandboxRow> {
  if (isTerminal(sandbox.status)) throw notPatchable(sandbox.status)
  const change = changeOf(body)
  const changes = Object.entries(change).filter(([name, value]) => sandbox[name as keyof SandboxRow] !== value)
  // Some clients send the same patch again and again. Nothing changes, so nothing is written.
  if (changes.length === 0) return sandbox
  const row = await deps.db
    .updateTable('sandboxes')
    .set({ ...change, ...(change.auto_pause_after_seconds ? { last_active_at: sql<Date>`now()` } : {}) })
    .where('id', '=', sandbox.id)
    .where('status', 'not in', [...TERMINAL_STATUSES])
    .returningAll()
    .returning(emitInStatement('sandboxes', 'sandbox.patch', AUDIT_ID(), eventData(changes)).as('emitted'))
    .executeTakeFirst()
  if (row) return row
  const { status } = await deps.db
    .selectFrom('sandboxes')
    .select('status')
    .where('id', '=', sandbox.id)
    .executeTakeFirstOrThrow()
  throw notPatchable(status)
}

const AUDIT_ID = () => sql<string | null>`${currentAuditId() ?? null}`

/** The changed fields. A disabled auto-pause has no number of seconds, so it has a field for itself. */
function eventData(changes: [string, unknown][]) {
  const fields = changes.map(([name, value]) =>
    name === 'auto_pause_after_seconds' && value === null ? ['disable_auto_pause', true] : [name, value],
  )
  const changed = JSON.stringify(Object.fromEntries(fields))
  return sql`(jsonb_build_object('id', sandboxes.id, 'name', sandboxes.name) || ${changed}::jsonb)::json`
}

const notPatchable = (status: SandboxStatus) => wrongState(status, 'a living sandbox')

/** Only given fields change. `disable_auto_pause` wins over a number. */
function changeOf(
  body: SandboxPatchBody,
): Partial<Pick<SandboxRow, 'ingress_enabled' | 'auto_pause_after_seconds' | 'auto_resume'>> {
  const { ingress_enabled, auto_pause_after_seconds, disable_auto_pause, auto_resume } = body
  return {
    ...(ingress_enabled == null ? {} : { ingress_enabled }),
    ...(auto_pause_after_seconds == null ? {} : { auto_pause_after_seconds }),
    ...(disable_auto_pause ? { auto_pause_after_seconds: null } : {}),
    ...(auto_resume == null ? {} : { auto_resume }),
  }
}
