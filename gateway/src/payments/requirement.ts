/** The body of a 402. */
import { listChains } from '../chains/table.ts'
import type { Config } from '../config.ts'
import { GatewayError } from '../http/errors.ts'
import type { PaymentHeaders } from './headers.ts'
import { toDollars, toTokenRaw } from './money.ts'

export type Requirement = {
  missingMicro: bigint
  poolMicro: bigint
  otherActive: number
  /** Why a payment was refused; without it no payment was presented, or one that was too small. */
  reason?: string | undefined
  warning?: string | undefined
  /** Further ways to pay. */
  offers?: Record<string, string>
}

export function paymentRequired(
  config: Pick<Config, 'payTo'>,
  { chain, token }: Pick<PaymentHeaders, 'chain' | 'token'>,
  { missingMicro, poolMicro, otherActive, reason, warning, offers = {} }: Requirement,
): GatewayError {
  const due = missingMicro > 0n ? missingMicro : 0n
  return new GatewayError(402, reason === undefined ? 'Payment required' : 'Payment verification failed', {
    headers: offers,
    extra: {
      amount_usd: toDollars(due),
      amount_token: toTokenRaw(due, token).toString(),
      current_credit_balance_usd: toDollars(poolMicro),
      active_projects: otherActive,
      pay_to: config.payTo,
      payment_chain: chain.name,
      token: token.name,
      decimals: token.decimals,
      supported_chains: listChains(),
      ...(reason === undefined ? {} : { reason }),
      ...(warning === undefined ? {} : { warning }),
    },
  })
}
