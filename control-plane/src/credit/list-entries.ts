/** The ledger of a user, newest first. */
import type { CreditEntryView, CreditLedgerQuery } from '@warren/protocol'
import type { Selectable } from 'kysely'
import type { Db } from '../db/connect.ts'
import type { Tables } from '../db/schema.ts'
import { clampPage } from '../http/pagination.ts'
import { renderTime } from '../sandboxes/view.ts'

export async function listCreditEntries(db: Db, userId: string, query: CreditLedgerQuery) {
  const { limit, offset } = clampPage(query)
  const { sandbox_id } = query
  const [rows, total] = await Promise.all([
    db
      .selectFrom('credit_entries as e')
      .leftJoin('usage_intervals as i', 'i.id', 'e.interval_id')
      .selectAll('e')
      .select(['i.kind as usage_kind', 'i.cpu_pct', 'i.mem_mib', 'i.disk_mib'])
      .where('e.user_id', '=', userId)
      .$if(Boolean(sandbox_id), (entries) => entries.where('e.sandbox_id', '=', sandbox_id!))
      .orderBy('e.id', 'desc')
      .limit(limit)
      .offset(offset)
      .execute(),
    sandbox_id ? countOfSandbox(db, userId, sandbox_id) : countAll(db, userId),
  ])
  return { entries: rows.map(viewEntry), total, limit, offset }
}

type Row = Selectable<Tables['credit_entries']> & {
  usage_kind: Tables['usage_intervals']['kind'] | null
  cpu_pct: number | null
  mem_mib: number | null
  disk_mib: number | null
}

const viewEntry = (row: Row): CreditEntryView => ({
  id: row.id,
  at: renderTime(row.created_at),
  kind: row.kind,
  amount_micro: row.amount_micro,
  balance_micro: row.balance_micro,
  reason: row.reason,
  ...(row.sandbox_id === null ? {} : { sandbox_id: row.sandbox_id }),
  ...(row.reference === null ? {} : { reference: row.reference }),
  ...(row.kind === 'usage' ? { usage: viewUsage(row) } : {}),
})

/** The columns of usage entries are set, which a constraint of the table ensures. */
const viewUsage = (row: Row): NonNullable<CreditEntryView['usage']> => ({
  status: row.usage_kind!,
  from: renderTime(row.period_start!),
  to: renderTime(row.period_end!),
  seconds: (row.period_end!.getTime() - row.period_start!.getTime()) / 1000,
  vcpu: row.usage_kind === 'running' ? row.cpu_pct! / 100 : 0,
  mem_mib: row.usage_kind === 'error' ? 0 : row.mem_mib!,
  disk_mib: row.disk_mib!,
})

/** Maintained by a trigger, because an account may have millions of entries. */
const countAll = async (db: Db, userId: string): Promise<number> =>
  (await db.selectFrom('users').select('credit_entry_count').where('id', '=', userId).executeTakeFirstOrThrow())
    .credit_entry_count

const countOfSandbox = async (db: Db, userId: string, sandboxId: string): Promise<number> =>
  (
    await db
      .selectFrom('credit_entries')
      .select((eb) => eb.fn.countAll<number>().as('n'))
      .where('user_id', '=', userId)
      .where('sandbox_id', '=', sandboxId)
      .executeTakeFirstOrThrow()
  ).n
