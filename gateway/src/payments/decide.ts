/**
 * Decides whether a deployment may start, from the wallet's credit and what was paid. Pure; the caller holds the lock of
 * the wallet.
 *
 * | pool    | other active projects | X-Use-Existing-Credits | answer                                  |
 * |---------|-----------------------|------------------------|-----------------------------------------|
 * | ≥ price | 0                     | any                    | granted                                 |
 * | ≥ price | 1 or more             | true                   | granted, the credit is shared           |
 * | ≥ price | 1 or more             | false                  | asked, with a hint at the header        |
 * | < price | any                   | any                    | asked                                   |
 * | any     | any                   | with X-Payment-Tx      | header ignored, the payment decides     |
 * | > 0     | redeploy of one month | any                    | granted, free                           |
 */
import { minMicro } from './money.ts'
import type { Quote } from './quotes.ts'

export type Situation = {
  /** Before the payment. Below zero after a payment was reverted by its chain. */
  poolMicro: bigint
  otherActive: number
  isRedeploy: boolean
  months: number
  useExistingCredits: boolean
  /** The price that applies now. */
  priceMicro: bigint
  /** Prices that were asked before and have not expired. */
  quotes: readonly Quote[]
  /** Paid before for the same name and time, too little then. It is part of the pool. */
  receivedMicro: bigint
  /** What running projects may have used of the pool since it was counted in a quote. */
  meteredMicro: bigint
  /** Undefined without X-Payment-Tx. */
  paidMicro: bigint | undefined
}

export type Decision =
  | { kind: 'granted'; sharesCredit: boolean }
  | { kind: 'asked'; missingMicro: bigint; countsPool: boolean; couldUseCredit: boolean }

export function decide(situation: Situation): Decision {
  const { poolMicro, otherActive, isRedeploy, months, useExistingCredits, priceMicro, quotes, paidMicro } = situation
  const isPaid = paidMicro !== undefined && paidMicro > 0n
  if (isRedeploy && months === 1 && poolMicro > 0n) return { kind: 'granted', sharesCredit: false }

  const countsPool = otherActive === 0 || (useExistingCredits && paidMicro === undefined)
  // A quote that counted the pool holds for the payment that follows it. Without a payment, the caller has to opt in again.
  const options = [
    { priceMicro, countsPool, meteredMicro: 0n },
    ...quotes.map((quote) => ({
      priceMicro: quote.priceMicro,
      countsPool: countsPool || (quote.countsPool && paidMicro !== undefined),
      // The pool was larger when it was counted, and the client has paid what was asked then.
      meteredMicro: quote.countsPool && isPaid && poolMicro > 0n ? situation.meteredMicro : 0n,
    })),
  ]
  const missingMicro = options.map((option) => missing(situation, option)).reduce(minMicro) - (paidMicro ?? 0n)
  const isCovered = options.some((option) => missing(situation, option) - option.meteredMicro <= (paidMicro ?? 0n))
  if (isCovered) return { kind: 'granted', sharesCredit: paidMicro === undefined && otherActive > 0 }
  const couldUseCredit = poolMicro + (paidMicro ?? 0n) >= priceMicro && !countsPool
  return { kind: 'asked', missingMicro, countsPool, couldUseCredit }
}

/** A debt is always added. Money that arrived for this deployment counts only as far as it is still in the pool. */
function missing({ poolMicro, receivedMicro }: Situation, { priceMicro, countsPool }: Quote): bigint {
  if (countsPool || poolMicro < 0n) return priceMicro - poolMicro
  return priceMicro - minMicro(receivedMicro, poolMicro)
}
