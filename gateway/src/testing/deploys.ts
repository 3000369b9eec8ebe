/** A gateway that accepts deployments, on two test chains, and clients that pay it. */
import type { Config } from '../config.ts'
import { startTestChain } from './anvil.ts'
import { createTestGateway, PAY_TO, type TestGateway, type TestOptions, type TestResponse } from './app.ts'
import { createTestWallet, type TestWallet } from './wallet.ts'

export const DOLLAR = 1_000_000n
export const PRICE = DOLLAR / 2n

export async function startChains() {
  const [arbitrum, base] = await Promise.all([startTestChain('arbitrum'), startTestChain('base')])
  return { arbitrum, base }
}
export type TestChains = Awaited<ReturnType<typeof startChains>>

export const chainConfig = (chains: TestChains): Partial<Config> => ({
  rpcArbitrum: [chains.arbitrum.url],
  rpcBase: [chains.base.url],
})

export function createDeployGateway(chains: TestChains, options: TestOptions = {}): Promise<TestGateway> {
  const config = { ...chainConfig(chains), ...options.config }
  return createTestGateway({ ...options, config })
}

let names = 0
export const newName = (): string => `site-${process.pid}-${++names}`

export function deployBody(more: Record<string, unknown> = {}) {
  return {
    uniqueName: newName(),
    displayName: 'A site',
    upload: {
      type: 'files',
      files: [{ path: 'index.html', content: Buffer.from('<h1>hello</h1>').toString('base64') }],
    },
    ...more,
  }
}

export async function sendDeploy(
  gateway: TestGateway,
  wallet: TestWallet,
  body: unknown,
  headers: Record<string, string> = {},
): Promise<TestResponse> {
  const signed = await wallet.sign({ nowMs: gateway.deps.now().getTime() })
  return gateway.request({ method: 'POST', url: '/agent/deploy', headers: { ...signed, ...headers }, body })
}

/** A wallet with 100 dollars of both tokens on both chains. */
export async function createFundedWallet(chains: TestChains): Promise<TestWallet> {
  const wallet = createTestWallet()
  for (const chain of [chains.arbitrum, chains.base]) {
    await chain.fund(wallet.address, 100n * DOLLAR, 'usdc')
    await chain.fund(wallet.address, 100n * DOLLAR, 'usdt')
  }
  return wallet
}

export const pay = (chains: TestChains, wallet: TestWallet, raw: bigint): Promise<`0x${string}`> =>
  chains.arbitrum.transfer(wallet.account, PAY_TO, raw)

/** The balance, after checking that it is the sum of the ledger. */
export async function readPool({ deps }: Pick<TestGateway, 'deps'>, address: string): Promise<bigint> {
  const { rows } = await deps.database.pool.query(
    `select balance_micro as balance, (select coalesce(sum(amount_micro), 0)::bigint from gateway.ledger l
       where l.wallet = w.address) as sum from gateway.wallets w where address = $1`,
    [address.toLowerCase()],
  )
  if (rows.length === 0) return 0n
  if (rows[0].balance !== rows[0].sum) throw new Error(`balance ${rows[0].balance} is not the ledger ${rows[0].sum}`)
  return rows[0].balance
}

/** What the deployment in the background does when an app is healthy. */
export async function activate(
  { deps }: Pick<TestGateway, 'deps'>,
  projectId: string,
  now = deps.now(),
): Promise<void> {
  await deps.database.pool.query(
    `update gateway.projects set status = 'active', url = 'https://' || unique_name || '.apps.example', metered_until = $2
     where id = $1`,
    [projectId, now],
  )
  await deps.database.pool.query(
    `update gateway.deployments set status = 'active' where project_id = $1 and status = 'queued'`,
    [projectId],
  )
}
