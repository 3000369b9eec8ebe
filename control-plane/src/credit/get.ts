/** The credit of a user: the balance, what is used right now, and how long the credit lasts at that rate. */
import type { CreditView } from '@warren/protocol'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { renderTime } from '../sandboxes/view.ts'
import { isCharged, type PlanName } from '../users/plans.ts'
import { microsecondsBetween, pricesOf, renderPrice, unitsPerMicro, unitsPerMicrosecond } from './price.ts'

type Row = {
  plan: PlanName
  balance: number
  pending: number
  per_hour: number
  runway_seconds: number | null
  now: Date
}

export async function getCredit(deps: Deps, userId: string): Promise<CreditView> {
  const prices = pricesOf(deps.config)
  const sinceCharge = microsecondsBetween(
    sql`i.charged_until`,
    sql`greatest(i.charged_until, least(i.ended_at, now()))`,
  )
  const { rows } = await sql<Row>`
    with used as (
      select coalesce(sum(${unitsPerMicrosecond(prices)} * ${sinceCharge}), 0) as pending_units,
        coalesce(sum(${unitsPerMicrosecond(prices)}) filter (where i.ended_at is null), 0) as rate
      from usage_intervals i where i.user_id = ${userId} and not i.settled and i.billable)
    select u.plan, u.credit_micro as balance, div(u.credit_carry + used.pending_units, ${unitsPerMicro}) as pending,
      floor(used.rate * 3600000000 / ${unitsPerMicro}) as per_hour,
      case when used.rate > 0 then floor(greatest(0,
        u.credit_micro::numeric * ${unitsPerMicro} - u.credit_carry - used.pending_units) / used.rate / 1000000) end
        as runway_seconds,
      now() as now
    from users u, used where u.id = ${userId}`.execute(deps.db)
  const row = rows[0]!
  const charged = isCharged(row.plan)
  return {
    balance_micro: row.balance,
    pending_micro: charged ? row.pending : 0,
    burn_micro_per_hour: charged ? row.per_hour : 0,
    ...(charged && row.runway_seconds !== null ? { runway_seconds: row.runway_seconds } : {}),
    charged,
    prices: {
      vcpu_second: renderPrice(prices.vcpu),
      memory_gib_second: renderPrice(prices.mem),
      disk_gib_second: renderPrice(prices.disk),
    },
    as_of: renderTime(row.now),
  }
}
