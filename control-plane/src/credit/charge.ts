/**
 * Charges usage.
 *
 * Each interval (sandboxes/usage.ts) records how far it has been charged. A charge locks the user's row, takes all
 * intervals of the user that are not charged up to now, adds an entry to the ledger for each, and moves their
 * `charged_until` forward, in one transaction. So a process that is killed has either charged a period or not, and the
 * next charge begins where the last one ended. A unique index on interval and period refuses a second entry.
 *
 * Parts of a micro-credit are carried to the next charge of the user (price.ts).
 *
 * The sweep charges a user when the oldest charge is `chargeSeconds` ago. Then, if there is no credit left, it pauses the
 * running sandboxes. A pause that fails is attempted again with the next charge.
 *
 * Intervals on the plans `local` and `internal` are not billable: when they have ended they are marked as settled, without
 * entries. When the plan of a user changes, a trigger splits the open intervals, so usage is charged by the plan of its time.
 * An interval that was opened at the same moment may have missed that, so each charge repeats it.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { type RawBuilder, sql } from 'kysely'
import type { Tx } from '../db/connect.ts'
import type { Deps } from '../deps.ts'
import type { Sweep } from '../jobs/sweep.ts'
import { lockUser } from '../users/caps.ts'
import { noteLowCredit } from './note-low.ts'
import { pauseWithoutCredit } from './pause-without-credit.ts'
import { microsecondsBetween, type Prices, pricesOf, unitsPerMicro, unitsPerMicrosecond } from './price.ts'

/** Bounds a transaction; a user with more intervals is charged in several. */
const BATCH = 2_000

export const chargeUsage: Sweep = {
  name: 'charge-usage',
  everyMs: 10_000,
  async run(deps) {
    for (const userId of await listDueUsers(deps)) {
      try {
        await chargeUser(deps, userId)
        await crashPoint('charge.committed')
        await pauseWithoutCredit(deps, userId)
      } catch (error) {
        // The other users are charged all the same.
        deps.log.error({ err: error, user: userId }, 'failed to charge user, it will be repeated')
      }
    }
  },
}

/** Charges all usage of a user up to now. */
export async function chargeUser(deps: Deps, userId: string): Promise<void> {
  const chargeBatch = async (tx: Tx) => {
    const user = await lockUser(tx, userId)
    await crashPoint('charge.locked')
    await sql`select align_usage_with_plan(${userId})`.execute(tx)
    const settled = await settleUnbillable(tx, userId)
    const charged = await addUsageEntries(tx, userId, pricesOf(deps.config))
    if (charged > 0) await noteLowCredit(deps, tx, user)
    await crashPoint('charge.entered')
    return Math.max(settled, charged)
  }
  while ((await deps.db.transaction().execute(chargeBatch)) === BATCH);
}

async function listDueUsers(deps: Deps): Promise<string[]> {
  const { rows } = await dueUsers(deps.config.chargeSeconds).execute(deps.db)
  return rows.map((row) => row.user_id)
}

export const dueUsers = (chargeSeconds: number) => sql<{ user_id: string }>`select i.user_id
  from usage_intervals i join users u on u.id = i.user_id
  where not i.settled and i.charged_until <= now() - make_interval(secs => ${chargeSeconds})
    and (i.billable or i.ended_at is not null or is_charged(u.plan))
  group by i.user_id order by min(i.charged_until)`

/** The intervals of the user that are used beyond what has been charged, locked. */
export const due = (userId: string, which: RawBuilder<unknown>) => sql`
  select i.*, i.charged_until as period_start, least(i.ended_at, now()) as period_end
  from usage_intervals i
  where i.user_id = ${userId} and not i.settled and i.charged_until < least(i.ended_at, now()) and ${which}
  order by i.id limit ${BATCH} for no key update`

const PERIOD_US = microsecondsBetween(sql`period_start`, sql`period_end`)

/** Amounts add up in the order of the intervals: each takes the whole micro-credits that are complete with it. */
async function addUsageEntries(tx: Tx, userId: string, prices: Prices): Promise<number> {
  const { rows } = await sql<{ n: number }>`
    with due as (${due(userId, sql`i.billable`)}),
    priced as (
      select i.*, ${unitsPerMicrosecond(prices)} * ${PERIOD_US} as units from due i),
    summed as (
      select p.*, u.credit_micro, u.credit_carry + sum(p.units) over (order by p.id) as total
      from priced p join users u on u.id = p.user_id),
    advanced as (
      update usage_intervals i set charged_until = s.period_end, settled = (i.ended_at is not distinct from s.period_end)
      from summed s where i.id = s.id),
    entered as (
      insert into credit_entries (user_id, kind, amount_micro, balance_micro, reason, sandbox_id, interval_id,
        period_start, period_end, vcpu_price, mem_price, disk_price, units)
      select user_id, 'usage', div(total - units, ${unitsPerMicro}) - div(total, ${unitsPerMicro}),
        credit_micro - div(total, ${unitsPerMicro}), 'usage of ' || sandbox_id, sandbox_id, id,
        period_start, period_end, ${prices.vcpu}::bigint, ${prices.mem}::bigint, ${prices.disk}::bigint, units
      from summed order by id)
    update users set credit_carry = mod(all_due.total, ${unitsPerMicro})
    from (select max(total) as total, count(*) as n from summed) all_due
    where users.id = ${userId} and all_due.n > 0 returning all_due.n`.execute(tx)
  return rows[0]?.n ?? 0
}

async function settleUnbillable(tx: Tx, userId: string): Promise<number> {
  const { rows } = await sql`
    with due as (${due(userId, sql`not i.billable and i.ended_at is not null`)})
    update usage_intervals i set charged_until = period_end, settled = (i.ended_at is not distinct from period_end),
      uncharged_us = i.uncharged_us + ${PERIOD_US}
    from due where i.id = due.id returning i.id`.execute(tx)
  return rows.length
}
