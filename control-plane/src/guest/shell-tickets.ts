/**
 * Tickets for `shell-ws`. A browser cannot send a credential header with a WebSocket, and a key in the URL ends up in the
 * logs of proxies. A ticket opens one shell, in one sandbox, within a minute. It acts for the caller that created it.
 */
import { randomBytes } from 'node:crypto'
import { SHELL_TICKET_SECONDS, type ShellTicketView } from '@warren/protocol'
import { sql } from 'kysely'
import { findTokenCaller } from '../access-tokens/find.ts'
import type { Deps } from '../deps.ts'
import type { Caller } from '../http/caller.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { type CallerRow, toCallerUser } from '../users/find-by-key.ts'
import { hashKey } from '../users/keys.ts'

export async function createShellTicket(deps: Deps, caller: Caller, sandboxId: string): Promise<ShellTicketView> {
  const ticket = randomBytes(24).toString('base64url')
  const tokenHash = caller.kind === 'token' ? Buffer.from(caller.tokenHash, 'hex') : null
  const { rows } = await sql<{ expires_at: Date }>`
    insert into shell_tickets (hash, sandbox_id, user_id, token_hash, hint, expires_at)
    values (${hashKey(ticket)}, ${sandboxId}, ${caller.user.id}, ${tokenHash}, ${caller.credential},
      now() + make_interval(secs => ${SHELL_TICKET_SECONDS})) returning expires_at`.execute(deps.db)
  return { ticket, expires_at: rows[0]!.expires_at.toISOString() }
}

type TicketRow = CallerRow & { token_hash: Buffer | null; hint: string }

/** Uses the ticket up. A ticket for another sandbox stays usable there. */
export async function takeShellTicket(deps: Deps, ticket: string, sandboxId: string): Promise<Caller | undefined> {
  const { rows } = await sql<TicketRow>`with taken as (
      delete from shell_tickets where hash = ${hashKey(ticket)} and sandbox_id = ${sandboxId} and expires_at > now()
      returning user_id, token_hash, hint)
    select u.id, u.name, u.external_id, u.plan, u.operator, u.limit_overrides, t.token_hash, t.hint
    from taken t join users u on u.id = t.user_id`.execute(deps.db)
  const [row] = rows
  if (!row) return undefined
  if (row.token_hash) return findTokenCaller(deps, row.token_hash.toString('hex'))
  return { kind: 'user', user: toCallerUser(deps, row), credential: row.hint }
}

export const deleteExpiredShellTickets: Sweep = {
  name: 'delete-expired-shell-tickets',
  everyMs: 60_000,
  async run(deps) {
    await sql`delete from shell_tickets where expires_at < now()`.execute(deps.db)
  },
}
