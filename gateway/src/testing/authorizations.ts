/** Payments that come with a request: authorizations that a test signs, with any lie in them. */
import { randomBytes } from 'node:crypto'
import { x402 } from 'mppx'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import { CHAINS, type ChainName } from '../chains/table.ts'
import type { TestChain } from './anvil.ts'
import { PAY_TO } from './app.ts'
import { PRICE, type TestChains } from './deploys.ts'
import type { TestWallet } from './wallet.ts'

type Hex = `0x${string}`

const TYPES = {
  TransferWithAuthorization: [
    { name: 'from', type: 'address' },
    { name: 'to', type: 'address' },
    { name: 'value', type: 'uint256' },
    { name: 'validAfter', type: 'uint256' },
    { name: 'validBefore', type: 'uint256' },
    { name: 'nonce', type: 'bytes32' },
  ],
} as const

export type TestAuthorization = {
  from: Hex
  to: Hex
  value: bigint
  validAfter: bigint
  validBefore: bigint
  nonce: Hex
  signature: Hex
}

export type Lies = Partial<Omit<TestAuthorization, 'signature'>> & { chainId?: number; token?: Hex }

export async function signAuthorization(
  wallet: TestWallet,
  chain: ChainName = 'arbitrum',
  { chainId = CHAINS[chain].id, token = CHAINS[chain].tokens.usdc.address, ...lies }: Lies = {},
): Promise<TestAuthorization> {
  const message = {
    from: wallet.address,
    to: PAY_TO as Hex,
    value: PRICE,
    validAfter: 0n,
    validBefore: BigInt(Math.floor(Date.now() / 1000) + 300),
    nonce: `0x${randomBytes(32).toString('hex')}` as Hex,
    ...lies,
  }
  const signature = await wallet.account.signTypedData({
    domain: { name: 'USD Coin', version: '2', chainId, verifyingContract: token },
    types: TYPES,
    primaryType: 'TransferWithAuthorization',
    message,
  })
  return { ...message, signature }
}

/** The header of x402. `claims` is what the client says it pays, by default the truth. */
export function x402Header(
  authorization: TestAuthorization,
  chain: ChainName = 'arbitrum',
  claims: { amount?: string; asset?: string; network?: `eip155:${number}`; payTo?: string } = {},
): Record<string, string> {
  const { signature, value, validAfter, validBefore, ...rest } = authorization
  const value_ = x402.Header.encodePaymentSignature({
    x402Version: 2,
    accepted: {
      scheme: 'exact',
      network: `eip155:${CHAINS[chain].id}`,
      asset: CHAINS[chain].tokens.usdc.address,
      amount: String(value),
      payTo: PAY_TO,
      maxTimeoutSeconds: 300,
      extra: { name: 'USD Coin', version: '2' },
      ...claims,
    },
    payload: {
      authorization: {
        ...rest,
        value: String(value),
        validAfter: String(validAfter),
        validBefore: String(validBefore),
      },
      signature,
    },
  })
  return { 'payment-signature': value_ }
}

/** Another party sends the authorization, as anyone may who saw it. */
export function sendAuthorization(chain: TestChain, sender: TestWallet, one: TestAuthorization): Promise<Hex> {
  const [r, s, v] = [
    one.signature.slice(0, 66),
    `0x${one.signature.slice(66, 130)}`,
    Number(`0x${one.signature.slice(130)}`),
  ]
  const args = [one.from, one.to, one.value, one.validAfter, one.validBefore, one.nonce, v, r, s]
  return chain.call(sender.account, chain.tokenAddress(), 'TestToken', 'transferWithAuthorization', args)
}

/** A settler with gas on both chains. */
export async function createTestSettler(chains: TestChains) {
  const key = generatePrivateKey()
  const { address } = privateKeyToAccount(key)
  for (const chain of [chains.arbitrum, chains.base]) await chain.test.setBalance({ address, value: 10n ** 20n })
  return {
    key,
    address,
    countSent: (chain: ChainName = 'arbitrum') => chains[chain].reader.getTransactionCount({ address }),
  }
}
