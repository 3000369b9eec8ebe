/**
 * What usage costs, exactly.
 *
 * Prices are whole numbers of 10^-12 credits per second of one vCPU, or of 1,024 MiB of memory or disk. Usage has whole
 * percents of a vCPU, whole MiB and whole microseconds. With UNITS_PER_MICRO as the denominator every product is a whole
 * number of units:
 *
 *   1 micro-credit = 10^6 (price) * 10^6 (microseconds) * 25,600 (the least common multiple of 100 and 1,024) units
 *
 * A charge takes the whole micro-credits and carries the remaining units to the next charge of the user. So the sum of
 * all charges does not depend on how often they are made.
 */
import { type RawBuilder, sql } from 'kysely'

export const PRICE_DECIMALS = 12
export const UNITS_PER_MICRO = 25_600_000_000_000_000n
/** The same in SQL. */
export const unitsPerMicro = sql.raw(`${UNITS_PER_MICRO}::numeric`)

export type Prices = { vcpu: number; mem: number; disk: number }

export const pricesOf = (config: { priceVcpu: number; priceMemory: number; priceDisk: number }): Prices => ({
  vcpu: config.priceVcpu,
  mem: config.priceMemory,
  disk: config.priceDisk,
})

/** The units that the interval `i` uses in each microsecond, as a numeric. */
export const unitsPerMicrosecond = ({ vcpu, mem, disk }: Prices): RawBuilder<string> => sql`(
  case when i.kind = 'running' then i.cpu_pct * 256 else 0 end * ${vcpu}::bigint::numeric
  + case when i.kind in ('running', 'paused') then i.mem_mib * 25 else 0 end * ${mem}::bigint::numeric
  + i.disk_mib * 25 * ${disk}::bigint::numeric)`

/** Exact: PostgreSQL stores times in microseconds and extracts them as a numeric. */
export const microsecondsBetween = (from: RawBuilder<unknown>, to: RawBuilder<unknown>): RawBuilder<string> =>
  sql`(extract(epoch from ${to} - ${from}) * 1000000)`

/** A price as credits per second: 1004550000 is "0.00100455". */
export function renderPrice(price: number): string {
  const digits = String(price).padStart(PRICE_DECIMALS + 1, '0')
  const fraction = digits.slice(-PRICE_DECIMALS).replace(/0+$/, '')
  return `${digits.slice(0, -PRICE_DECIMALS)}${fraction === '' ? '' : `.${fraction}`}`
}
