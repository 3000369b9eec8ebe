/**
 * Checks that the credit of every user is explained by the ledger, and the ledger by usage. It reads everything in one
 * snapshot, so it can run while charges are made. Returns one line for each difference.
 */
import { type RawBuilder, sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import { microsecondsBetween, unitsPerMicro } from './price.ts'

export type CreditFault = { user_id: string; check: string; subject: string; expected: string; found: string }

export function verifyCredit(db: Db): Promise<CreditFault[]> {
  return db
    .transaction()
    .setIsolationLevel('repeatable read')
    .setAccessMode('read only')
    .execute(async (tx) => {
      // Longer than a request may take: it reads the whole ledger.
      await sql`set local statement_timeout = 0`.execute(tx)
      return listFaults(tx)
    })
}

export async function listFaults(tx: Tx): Promise<CreditFault[]> {
  const faults: CreditFault[] = []
  for (const [check, query] of Object.entries(CHECKS)) faults.push(...(await run(tx, check, query)))
  return faults
}

async function run(tx: Tx, check: string, query: RawBuilder<unknown>): Promise<CreditFault[]> {
  const { rows } = await sql<Omit<CreditFault, 'check'>>`
    select user_id, subject::text, expected::text, found::text from (${query}) compared
    where expected is distinct from found order by user_id, subject limit 100`.execute(tx)
  return rows.map((row) => ({
    user_id: row.user_id,
    check,
    subject: row.subject,
    expected: row.expected,
    found: row.found,
  }))
}

const periodUs = microsecondsBetween(sql`e.period_start`, sql`e.period_end`)

/** Each query has the columns user_id, subject, expected and found. */
const CHECKS: Record<string, RawBuilder<unknown>> = {
  'the balance is the sum of the ledger': sql`
    select u.id as user_id, 'balance' as subject, coalesce(e.sum, 0) as expected, u.credit_micro as found
    from users u left join (select user_id, sum(amount_micro) from credit_entries group by user_id) e on e.user_id = u.id`,
  'the number of entries is counted': sql`
    select u.id as user_id, 'entries' as subject, coalesce(e.n, 0) as expected, u.credit_entry_count as found
    from users u left join (select user_id, count(*) as n from credit_entries group by user_id) e on e.user_id = u.id`,
  'each entry has the balance after it': sql`
    select user_id, 'entry ' || id as subject, balance_micro as found,
      sum(amount_micro) over (partition by user_id order by id) as expected from credit_entries`,
  'charges are usage times price, without the carried part': sql`
    select u.id as user_id, 'units' as subject, coalesce(e.units, 0) as expected,
      coalesce(-e.amount, 0) * ${unitsPerMicro} + u.credit_carry as found
    from users u left join (
      select user_id, sum(units) as units, sum(amount_micro) as amount from credit_entries where kind = 'usage' group by user_id
    ) e on e.user_id = u.id`,
  'the units of an entry are its period times its prices': sql`
    select e.user_id, 'entry ' || e.id as subject, e.units as found, ${periodUs} * (
      case when i.kind = 'running' then i.cpu_pct * 256 else 0 end * e.vcpu_price::numeric
      + case when i.kind <> 'error' then i.mem_mib * 25 else 0 end * e.mem_price::numeric
      + i.disk_mib * 25 * e.disk_price::numeric) as expected
    from credit_entries e join usage_intervals i on i.id = e.interval_id`,
  'an entry belongs to the user and the sandbox of its interval': sql`
    select e.user_id, 'entry ' || e.id as subject, i.user_id || ' ' || i.sandbox_id as expected,
      e.user_id || ' ' || e.sandbox_id as found
    from credit_entries e join usage_intervals i on i.id = e.interval_id`,
  'the periods of an interval cover what is charged': sql`
    select i.user_id, 'interval ' || i.id as subject, ${microsecondsBetween(sql`i.started_at`, sql`i.charged_until`)} as expected,
      i.uncharged_us + coalesce(sum(${periodUs}), 0) as found
    from usage_intervals i left join credit_entries e on e.interval_id = i.id group by i.id`,
  'the periods of an interval do not overlap': sql`
    select user_id, 'entry ' || id as subject, true as expected, period_start >= coalesce(lag(period_end) over (
        partition by interval_id order by period_start), '-infinity') as found
    from credit_entries where interval_id is not null`,
  'the periods of an interval are inside it': sql`
    select e.user_id, 'entry ' || e.id as subject, true as expected,
      e.period_start >= i.started_at and e.period_end <= i.charged_until as found
    from credit_entries e join usage_intervals i on i.id = e.interval_id`,
}
