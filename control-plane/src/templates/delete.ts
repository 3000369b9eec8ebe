/**
 * Deletes a template in any status. A build that runs is cancelled, and what the host has of the template is deleted, by a
 * sweep right afterwards (builds/clean-up.ts). Sandboxes that were made from it live on.
 */
import { notFound } from '@warren/kit/failure'
import type { TemplateDeleteView } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { emitTemplateDeleted } from './emit.ts'
import { getTemplate } from './queries.ts'

export async function deleteTemplate(deps: Deps, userId: string, idOrName: string): Promise<TemplateDeleteView> {
  return deps.db.transaction().execute(async (tx) => {
    const { id } = await getTemplate(tx, userId, idOrName)
    const row = await tx
      .updateTable('templates')
      .set({ deleted_at: deps.now() })
      .where('id', '=', id)
      .where('deleted_at', 'is', null)
      .returningAll()
      .executeTakeFirst()
    if (!row) throw notFound('template') // Another request deleted it a moment ago.
    await emitTemplateDeleted(tx, row)
    return { id, status: 'destroyed', ok: true }
  })
}
