/** Answers a 402 with an authorization that the gateway brings to the chain (x402), up to a limit of the user. */
import { randomBytes } from 'node:crypto'
import { x402 } from 'mppx'
import type { PrivateKeyAccount } from 'viem/accounts'
import { AUTHORIZATION_DOMAIN, AUTHORIZED_TOKEN, findChainById } from '../chains/table.ts'
import { AUTHORIZATION_TYPES } from '../settlements/authorization.ts'
import type { AnswerError } from './client.ts'

type Hex = `0x${string}`
/** USDC has six decimals on both chains. */
const MICRO_PER_DOLLAR = 1_000_000

export async function signPayment(
  account: PrivateKeyAccount,
  asked: AnswerError,
  maxUsd: number,
): Promise<Record<string, string>> {
  const header = asked.headers.get('payment-required')
  if (header === null) throw new Error(describeTransfer(asked, 'this gateway takes transfers only'))
  const { accepts, resource } = x402.Header.decodePaymentRequired(header)
  const accepted = accepts[0]!
  const chainId = Number(accepted.network.slice('eip155:'.length))
  const token = findChainById(chainId)?.tokens[AUTHORIZED_TOKEN]
  // A unit of another token may be worth far more, whatever the gateway calls it.
  if (token?.address.toLowerCase() !== accepted.asset.toLowerCase()) {
    throw new Error(
      `the gateway asks for the token ${accepted.asset} on ${accepted.network}, which is not ${AUTHORIZED_TOKEN}`,
    )
  }
  const usd = Number(accepted.amount) / MICRO_PER_DOLLAR
  if (usd > maxUsd) throw new Error(`the gateway asks for $${usd}, more than --pay ${maxUsd}`)
  const nowS = Math.floor(Date.now() / 1000)
  const message = {
    from: account.address,
    to: accepted.payTo as Hex,
    value: BigInt(accepted.amount),
    validAfter: 0n,
    validBefore: BigInt(nowS + accepted.maxTimeoutSeconds),
    nonce: `0x${randomBytes(32).toString('hex')}` as Hex,
  }
  const signature = await account.signTypedData({
    domain: { ...AUTHORIZATION_DOMAIN, chainId, verifyingContract: token.address },
    types: AUTHORIZATION_TYPES,
    primaryType: 'TransferWithAuthorization',
    message,
  })
  const authorization = {
    ...message,
    value: accepted.amount,
    validAfter: '0',
    validBefore: String(message.validBefore),
  }
  const payload = { authorization, signature }
  return { 'PAYMENT-SIGNATURE': x402.Header.encodePaymentSignature({ x402Version: 2, resource, accepted, payload }) }
}

/** What to do by hand. The gateway warns when the credit of the wallet would be enough. */
export function describeTransfer({ body }: AnswerError, why: string): string {
  const { amount_token, decimals, token, payment_chain, pay_to, warning } = body
  const transfer =
    `Send ${amount_token} units (${decimals} decimals) of ${token} on ${payment_chain} to ${pay_to} from this wallet, ` +
    'then repeat the command with --tx <hash>'
  const credit = warning === undefined ? '' : '. Or share the credit of the wallet with --use-credits'
  return `${why}. ${transfer}${credit}`
}
