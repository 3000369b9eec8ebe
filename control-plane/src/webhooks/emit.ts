/**
 * Emits webhook events, always in the transaction of their cause: the event exists exactly if the cause does, also when the
 * process dies right after the commit. The database adds a delivery for each endpoint (migration 0008), and a process
 * delivers it (deliverer.ts).
 */
import type { WebhookAction, WebhookData } from '@warren/protocol'
import { type RawBuilder, sql } from 'kysely'
import { currentAuditId } from '../audit/context.ts'
import type { Tx } from '../db/connect.ts'

export type NewEvent<Action extends WebhookAction = WebhookAction> = {
  userId: string
  action: Action
  /** Events with the same subject are delivered in order: the sandbox, or the resource if no sandbox is concerned. */
  subject: string
  data: WebhookData<Action>
  /** The call that caused it, if it is not the one that is being served. */
  auditId?: string | null
}

export async function emitEvent<Action extends WebhookAction>(tx: Tx, event: NewEvent<Action>): Promise<void> {
  await sql`select ${emitting(event)}`.execute(tx)
}

/** An expression that emits the event, for `returning` of the statement that is its cause: it saves a round trip. */
export const emitting = <Action extends WebhookAction>(event: NewEvent<Action>) => {
  const { userId, action, subject, data, auditId = currentAuditId() ?? null } = event
  return sql<null>`emit_webhook_event(${userId}, ${action}, ${subject}, ${auditId}, ${JSON.stringify(data)}::json)`
}

/** The same for statements that change one row of `sandboxes`, with data of that row. */
export const emitInStatement = (
  row: string,
  action: WebhookAction,
  auditId: RawBuilder<string | null>,
  data: RawBuilder<unknown>,
): RawBuilder<null> =>
  sql<null>`emit_webhook_event(${sql.ref(`${row}.user_id`)}, ${action}, ${sql.ref(`${row}.id`)}, ${auditId}, ${data})`
