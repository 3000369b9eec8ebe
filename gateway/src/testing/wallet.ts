/** A wallet for tests, and the headers of its signed requests. */
import { randomUUID } from 'node:crypto'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'

export type TestWallet = ReturnType<typeof createTestWallet>
export type SignOptions = { wallet?: string; timestampMs?: number; nonce?: string; nowMs?: number }

export function createTestWallet() {
  const privateKey = generatePrivateKey()
  const account = privateKeyToAccount(privateKey)
  return {
    privateKey,
    account,
    address: account.address,
    /** Headers of one request. The options replace what would be signed. */
    async sign(options: SignOptions = {}): Promise<Record<string, string>> {
      const wallet = options.wallet ?? account.address
      const timestamp = String(options.timestampMs ?? options.nowMs ?? Date.now())
      const nonce = options.nonce ?? randomUUID()
      const signature = await account.signMessage({ message: `${wallet}:${timestamp}:${nonce}` })
      return { 'x-wallet-address': wallet, 'x-timestamp': timestamp, 'x-nonce': nonce, 'x-signature': signature }
    },
  }
}
