/** Webhook events of templates. */
import type { Tx } from '../db/connect.ts'
import type { TemplateRow } from '../db/schema.ts'
import { emitEvent } from '../webhooks/emit.ts'

type TemplateAction = 'template.submit' | 'template.build.start' | 'template.build.complete'

/** Events of a build belong to the call that submitted it. */
export function emitTemplateEvent(tx: Tx, action: TemplateAction, template: TemplateRow): Promise<void> {
  const { id, name, user_id, status, failure_reason, audit_id } = template
  return emitEvent(tx, {
    userId: user_id,
    action,
    subject: id,
    auditId: audit_id,
    data: { id, name, template_id: id, status, ...(failure_reason === null ? {} : { failure_reason }) },
  })
}

export function emitTemplateDeleted(tx: Tx, { id, name, user_id }: TemplateRow): Promise<void> {
  const data = { id, name, template_id: id, status: 'destroyed' as const }
  return emitEvent(tx, { userId: user_id, action: 'template.delete', subject: id, data })
}
