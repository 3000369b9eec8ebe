/**
 * Changes that cost nothing: one statement, in every state but the terminal ones (wire 2). A new idle limit counts from
 * now: a sandbox that was idle for longer gets the new limit in full, and nobody who uses it this very moment, knowing
 * only the old one, is taken by surprise (auto-pause.ts).
 */
import { wrongState } from '@warren/kit/failure'
import { isTerminal, type SandboxPatchBody, type SandboxStatus, TERMINAL_STATUSES } from '@warren/protocol'
import { sql } from 'kysely'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

export async function patchSandbox(deps: Deps, sandbox: SandboxRow, body: SandboxPatchBody): Promise<SandboxRow> {
  if (isTerminal(sandbox.status)) throw refusal(sandbox.status)
  const change = changeOf(body)
  const changes = Object.entries(change).filter(([name, value]) => sandbox[name as keyof SandboxRow] !== value)
  // A client sends the same patch with every turn: nothing changes, so nothing is written.
  if (changes.length === 0) return sandbox
  const row = await deps.db
    .updateTable('sandboxes')
    .set({ ...change, ...(change.auto_pause_after_seconds ? { last_active_at: sql<Date>`now()` } : {}) })
    .where('id', '=', sandbox.id)
    .where('status', 'not in', [...TERMINAL_STATUSES])
    .returningAll()
    .executeTakeFirst()
  if (row) return row
  const { status } = await deps.db
    .selectFrom('sandboxes')
    .select('status')
    .where('id', '=', sandbox.id)
    .executeTakeFirstOrThrow()
  throw refusal(status)
}

const refusal = (status: SandboxStatus) => wrongState(status, 'a living sandbox')

/** Only what is given changes; switching off wins over a number (spec 4.1). */
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
