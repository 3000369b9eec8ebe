/**
 * A chain for tests, with our token at the addresses of the real ones. Every transaction is mined at once unless a test
 * stops that.
 */
import { after } from 'node:test'
import { type Account, createPublicClient, createTestClient, createWalletClient, http, publicActions } from 'viem'
import { CHAINS, type ChainName, type TokenName } from '../chains/table.ts'
import { startAnvil } from '../dev-chain/anvil.ts'
import { CONTRACTS, putTokens, setTokenBalance } from '../dev-chain/token.ts'

type Address = `0x${string}`
type Hash = `0x${string}`

export type TestChain = Awaited<ReturnType<typeof startTestChain>>

/** Ended with the test file. */
export async function startTestChain(name: ChainName, options: { chainId?: number } = {}) {
  const chain = CHAINS[name]
  const { url, child } = await startAnvil({ chainId: options.chainId ?? chain.id })
  after(() => child.kill('SIGKILL'))
  const transport = http(url)
  const test = createTestClient({ mode: 'anvil', transport }).extend(publicActions)
  const reader = createPublicClient({ transport, cacheTime: 0 })
  await putTokens(test, chain)

  /** Sends a call from an account that has a key here. Resolves when it is in the pool, and mined unless mining is off. */
  async function call(
    from: Account,
    to: Address,
    contract: keyof typeof CONTRACTS,
    functionName: string,
    args: unknown[],
    more: { gas?: bigint } = {},
  ): Promise<Hash> {
    await test.setBalance({ address: from.address, value: 10n ** 20n })
    const wallet = createWalletClient({ account: from, transport })
    const { abi } = CONTRACTS[contract]
    return wallet.writeContract({ chain: null, address: to, abi, functionName, args, ...more })
  }

  return {
    name,
    url,
    child,
    test,
    reader,
    call,
    tokenAddress: (token: TokenName = 'usdc'): Address => chain.tokens[token].address,
    fund: (address: Address, raw: bigint, token: TokenName = 'usdc') =>
      setTokenBalance(test, chain.tokens[token], address, raw),
    transfer: (from: Account, to: Address, raw: bigint, token: TokenName = 'usdc') =>
      call(from, chain.tokens[token].address, 'TestToken', 'transfer', [to, raw]),
    async deploy(from: Account, contract: keyof typeof CONTRACTS, args: unknown[] = []): Promise<Address> {
      await test.setBalance({ address: from.address, value: 10n ** 20n })
      const wallet = createWalletClient({ account: from, transport })
      const { abi, bytecode } = CONTRACTS[contract]
      const hash = await wallet.deployContract({ chain: null, abi, bytecode, args })
      const { contractAddress } = await reader.waitForTransactionReceipt({ hash, pollingInterval: 20 })
      return contractAddress!
    },
    /** Replaces the newest blocks with empty ones; their transactions are gone. */
    reorg: (depth: number) => test.request({ method: 'anvil_reorg', params: [depth, []] } as never),
    stop: () => child.kill('SIGKILL'),
  }
}
