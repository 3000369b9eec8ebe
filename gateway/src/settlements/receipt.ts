/** What a client learns about a payment that came with its request. */
import { Receipt, x402 } from 'mppx'
import type { Deps } from '../deps.ts'
import type { Settlement } from './settle.ts'

export function renderReceipt(
  { now }: Pick<Deps, 'now'>,
  settlement: Settlement,
  hash: string,
): Record<string, string> {
  if (settlement.transport === 'x402') {
    const { chain, payer } = settlement
    const response = { success: true, transaction: hash, network: `eip155:${chain.id}`, payer }
    return { 'PAYMENT-RESPONSE': x402.Header.encodePaymentResponse(response) }
  }
  const receipt = { method: 'evm', reference: hash, status: 'success' as const, timestamp: now().toISOString() }
  return { 'Payment-Receipt': Receipt.serialize(Receipt.from(receipt)) }
}
