/**
 * The only code that writes the status of a template. A move is one guarded statement: it applies to a template that has
 * the right status, is at this attempt and was not deleted. Of several processes that see the same end of a build, one
 * moves the row, and the others find nothing to move.
 */
import { TEMPLATE_MOVES, type TemplateMove } from '@warren/protocol'
import type { Tx } from '../db/connect.ts'
import type { TemplateRow } from '../db/schema.ts'

type Changes = Partial<
  Pick<
    TemplateRow,
    | 'attempt'
    | 'attempt_started_at'
    | 'host_id'
    | 'ip'
    | 'reserved_mib'
    | 'ext4_size_bytes'
    | 'min_disk_mib'
    | 'built_at'
    | 'failure_reason'
  >
>

export function moveTemplate(
  tx: Tx,
  { id, attempt }: Pick<TemplateRow, 'id' | 'attempt'>,
  move: TemplateMove,
  changes: Changes,
): Promise<TemplateRow | undefined> {
  const { from, to } = TEMPLATE_MOVES[move]
  return tx
    .updateTable('templates')
    .set({ ...changes, status: to })
    .where('id', '=', id)
    .where('attempt', '=', attempt)
    .where('status', 'in', [...from])
    .where('deleted_at', 'is', null)
    .returningAll()
    .executeTakeFirst()
}
