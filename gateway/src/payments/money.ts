/** Money is a whole number of millionths of a dollar. A dollar in the API is a number only where it is shown. */

import type { Token } from '../chains/table.ts'
import type { Config } from '../config.ts'

/** The lowest price that is asked. It also stays below the limit of $1 per payment that some clients have. */
export const FLOOR_MICRO = 500_000n
const MICRO_DECIMALS = 6
const MICRO_PER_DOLLAR = 1_000_000

export function priceMicro(config: Pick<Config, 'monthlyRateMicroUsd'>, months: number): bigint {
  const rate = BigInt(config.monthlyRateMicroUsd)
  return (rate > FLOOR_MICRO ? rate : FLOOR_MICRO) * BigInt(months)
}

const MINUTES_PER_MONTH = 730n * 60n

/** The most that the projects of one wallet use while a quote is valid, rounded up. */
export function meteredPerQuoteMicro(
  config: Pick<Config, 'monthlyRateMicroUsd' | 'projectsMax' | 'quoteMinutes'>,
): bigint {
  const total = BigInt(config.monthlyRateMicroUsd) * BigInt(config.projectsMax) * BigInt(config.quoteMinutes)
  return total / MINUTES_PER_MONTH + 1n
}

/** Rounded up: the smallest amount of the token that covers the price. */
export function toTokenRaw(micro: bigint, token: Token): bigint {
  if (token.decimals >= MICRO_DECIMALS) return micro * 10n ** BigInt(token.decimals - MICRO_DECIMALS)
  const unit = 10n ** BigInt(MICRO_DECIMALS - token.decimals)
  return (micro + unit - 1n) / unit
}

/** Rounded down. */
export function toMicro(raw: bigint, token: Token): bigint {
  if (token.decimals <= MICRO_DECIMALS) return raw * 10n ** BigInt(MICRO_DECIMALS - token.decimals)
  return raw / 10n ** BigInt(token.decimals - MICRO_DECIMALS)
}

export const toDollars = (micro: bigint): number => Number(micro) / MICRO_PER_DOLLAR

export function maxMicro(one: bigint, other: bigint): bigint {
  if (one > other) return one
  return other
}

export function minMicro(one: bigint, other: bigint): bigint {
  if (one < other) return one
  return other
}
