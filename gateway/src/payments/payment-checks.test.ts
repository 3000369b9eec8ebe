/** Every way in which a transaction is not, or is, a payment for us. Two chains run side by side. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { PAY_TO } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import {
  createDeployGateway,
  createFundedWallet,
  DOLLAR,
  deployBody,
  newName,
  PRICE,
  pay,
  readPool,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { createTestWallet } from '../testing/wallet.ts'

const chains = await startChains()
const { arbitrum, base } = chains
const database = await createTestDatabase()
const gateway = await createDeployGateway(chains, { database })
const send = (wallet: Parameters<typeof sendDeploy>[1], headers: Record<string, string> = {}, body = deployBody()) =>
  sendDeploy(gateway, wallet, body, headers)

async function assertRefused(
  wallet: Parameters<typeof sendDeploy>[1],
  headers: Record<string, string>,
  reason: string,
): Promise<void> {
  const { status, body } = await send(wallet, headers)
  assert.deepEqual([status, body.error, body.reason], [402, 'Payment verification failed', reason])
}

test('without credit the answer is 402 with exactly what to pay, and nothing is written for the wallet', async () => {
  const wallet = createTestWallet()

  const { status, body, headers } = await send(wallet)

  assert.equal(status, 402)
  assert.deepEqual(body, {
    error: 'Payment required',
    amount_usd: 0.5,
    amount_token: '500000',
    current_credit_balance_usd: 0,
    active_projects: 0,
    pay_to: PAY_TO,
    payment_chain: 'arbitrum',
    token: 'usdc',
    decimals: 6,
    supported_chains: [
      { chain: 'arbitrum', chain_id: 42161, tokens: ['usdc', 'usdt'] },
      { chain: 'base', chain_id: 8453, tokens: ['usdc', 'usdt'] },
    ],
  })
  assert.equal(headers['cache-control'], 'no-store')
  assert.equal(await readPool(gateway, wallet.address), 0n)
})

test('the 402 echoes chain and token in any case, and an unknown one is 400', async () => {
  const wallet = createTestWallet()

  const { body } = await send(wallet, { 'x-payment-chain': 'BASE', 'x-payment-token': 'UsdT' })
  assert.deepEqual([body.payment_chain, body.token], ['base', 'usdt'])

  for (const [name, value] of [['chain', 'ethereum'] as const, ['token', 'dai'] as const, ['tx', '0x12'] as const]) {
    const { status, body } = await send(wallet, { [`x-payment-${name}`]: value })
    assert.equal(status, 400)
    assert.match(body.error, /^X-Payment-/)
  }
})

test('a transfer of the price in each token on each chain starts a deployment', async () => {
  for (const chain of [arbitrum, base]) {
    for (const token of ['usdc', 'usdt'] as const) {
      const wallet = await createFundedWallet(chains)
      const hash = await chain.transfer(wallet.account, PAY_TO, PRICE, token)

      const headers = { 'x-payment-tx': hash, 'x-payment-chain': chain.name, 'x-payment-token': token }
      const { status, body } = await send(wallet, headers)

      assert.equal(status, 200, JSON.stringify(body))
      assert.equal(body.status, 'deploying')
      assert.equal(body.message, 'Deployment started. Poll status for updates.')
      assert.equal(await readPool(gateway, wallet.address), PRICE)
    }
  }
})

test("stolen hash: another wallet's payment is refused, and its owner can still use it", async () => {
  const owner = await createFundedWallet(chains)
  const hash = await pay(chains, owner, PRICE)

  await assertRefused(createTestWallet(), { 'x-payment-tx': hash }, 'transfer is from another wallet')

  assert.equal((await send(owner, { 'x-payment-tx': hash })).status, 200)
})

test('upper-case hash: a used hash in another spelling is used', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)
  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200)

  const { status, body } = await send(wallet, { 'x-payment-tx': `0x${hash.slice(2).toUpperCase()}` })

  assert.deepEqual([status, body.error], [409, 'Payment already processed'])
})

test('the wallet that used a hash gets the ids it bought again, others get nothing', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)
  const first = await send(wallet, { 'x-payment-tx': hash })

  const again = await send(wallet, { 'x-payment-tx': hash })
  const other = await send(createTestWallet(), { 'x-payment-tx': hash })

  assert.equal(again.status, 409)
  assert.deepEqual(again.body, {
    error: 'Payment already processed',
    projectId: first.body.projectId,
    deploymentId: first.body.deploymentId,
  })
  assert.equal(other.status, 409)
  assert.deepEqual(other.body, { error: 'Payment already processed' })
})

test('parallel duplicates: of 12 requests with one hash, for different names, exactly one is granted', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)

  const answers = await Promise.all(Array.from({ length: 12 }, () => send(wallet, { 'x-payment-tx': hash })))

  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, ...Array(11).fill(409)])
  assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('wrong chain: the hash is not found there, is not consumed, and works with the right chain', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)

  await assertRefused(wallet, { 'x-payment-tx': hash, 'x-payment-chain': 'base' }, 'not found or not confirmed yet')

  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200)
})

test('wrong token: a payment in usdt does not count as usdc, and works with the right header', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await arbitrum.transfer(wallet.account, PAY_TO, PRICE, 'usdt')

  await assertRefused(wallet, { 'x-payment-tx': hash }, 'wrong token contract')

  assert.equal((await send(wallet, { 'x-payment-tx': hash, 'x-payment-token': 'usdt' })).status, 200)
})

test('look-alike token: a fake contract with the same code and events is not the token, on either chain', async () => {
  const wallet = await createFundedWallet(chains)
  const deployer = createTestWallet()
  const fakes = await Promise.all([arbitrum, base].map((chain) => chain.deploy(deployer.account, 'TestToken')))
  assert.equal(fakes[0], fakes[1], 'equal deployers and nonces give equal addresses')

  for (const chain of [arbitrum, base]) {
    await chain.call(wallet.account, fakes[0]!, 'TestToken', 'mint', [wallet.address, DOLLAR])
    const hash = await chain.call(wallet.account, fakes[0]!, 'TestToken', 'transfer', [PAY_TO, DOLLAR])
    await assertRefused(wallet, { 'x-payment-tx': hash, 'x-payment-chain': chain.name }, 'wrong token contract')
  }
})

test('a successful transaction that moves nothing, or zero, is no payment', async () => {
  const wallet = await createFundedWallet(chains)
  const relay = await arbitrum.deploy(wallet.account, 'TestWallet', [wallet.address])
  const args = [arbitrum.tokenAddress(), PAY_TO, PRICE]
  const nothing = await arbitrum.call(wallet.account, relay, 'TestWallet', 'nothing', args)
  const zero = await pay(chains, wallet, 0n)
  const elsewhere = await arbitrum.transfer(wallet.account, createTestWallet().address, PRICE)

  for (const hash of [nothing, zero, elsewhere]) {
    await assertRefused(wallet, { 'x-payment-tx': hash }, 'no transfer of usdc to pay_to')
  }
})

test('split payment: several transfers of one transaction count together', async () => {
  const wallet = await createFundedWallet(chains)
  const relay = await arbitrum.deploy(createTestWallet().account, 'TestWallet', [wallet.address])
  await arbitrum.call(wallet.account, arbitrum.tokenAddress(), 'TestToken', 'approve', [relay, DOLLAR])
  const halves = [arbitrum.tokenAddress(), [wallet.address, wallet.address], PAY_TO, [PRICE / 2n, PRICE / 2n]]

  // Sent by a relayer: who pays is what the token says, not who sends the transaction.
  const hash = await arbitrum.call(createTestWallet().account, relay, 'TestWallet', 'pull', halves)

  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200)
})

test('two payers in one transaction: only the first can claim it, for its own part', async () => {
  const [one, two] = [await createFundedWallet(chains), await createFundedWallet(chains)]
  const relay = await arbitrum.deploy(createTestWallet().account, 'TestWallet', [one.address])
  for (const wallet of [one, two]) {
    await arbitrum.call(wallet.account, arbitrum.tokenAddress(), 'TestToken', 'approve', [relay, DOLLAR])
  }
  const args = [arbitrum.tokenAddress(), [one.address, two.address], PAY_TO, [PRICE, PRICE]]
  const hash = await arbitrum.call(createTestWallet().account, relay, 'TestWallet', 'pull', args)

  assert.equal((await send(two, { 'x-payment-tx': hash })).status, 200)
  assert.equal((await send(one, { 'x-payment-tx': hash })).status, 409)
  assert.equal(await readPool(gateway, two.address), PRICE)
})

test('short payment: it is credited, its hash is used, and the rest is enough afterwards', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const short = await pay(chains, wallet, 200_000n)

  const first = await send(wallet, { 'x-payment-tx': short }, body)

  assert.equal(first.status, 402)
  assert.match(first.body.reason, /^amount is less than required/)
  assert.deepEqual(
    [first.body.amount_usd, first.body.amount_token, first.body.current_credit_balance_usd],
    [0.3, '300000', 0.2],
  )
  assert.equal((await send(wallet, { 'x-payment-tx': short }, body)).status, 409)
  const rest = await pay(chains, wallet, 300_000n)
  assert.equal((await send(wallet, { 'x-payment-tx': rest }, body)).status, 200)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('short payment beside active projects: what arrived for this deployment counts, the shared credit does not', async () => {
  const wallet = await createFundedWallet(chains)
  assert.equal((await send(wallet, { 'x-payment-tx': await pay(chains, wallet, 2n * DOLLAR) })).status, 200)
  const body = deployBody()

  const first = await send(wallet, { 'x-payment-tx': await pay(chains, wallet, 200_000n) }, body)
  assert.deepEqual([first.status, first.body.amount_usd, first.body.active_projects], [402, 0.3, 1])
  assert.match(first.body.warning, /X-Use-Existing-Credits/)
  const asked = await send(wallet, {}, body)
  assert.deepEqual([asked.status, asked.body.amount_usd], [402, 0.3])

  assert.equal((await send(wallet, { 'x-payment-tx': await pay(chains, wallet, 299_999n) }, body)).status, 402)
  assert.equal((await send(wallet, { 'x-payment-tx': await pay(chains, wallet, 1n) }, body)).status, 200)
})

test('overpayment stays in the pool', async () => {
  const wallet = await createFundedWallet(chains)

  assert.equal((await send(wallet, { 'x-payment-tx': await pay(chains, wallet, 3n * DOLLAR) })).status, 200)

  assert.equal(await readPool(gateway, wallet.address), 3n * DOLLAR)
})

test('reverted transaction: refused', async () => {
  const wallet = createTestWallet()
  const token = arbitrum.tokenAddress()
  const hash = await arbitrum.call(wallet.account, token, 'TestToken', 'transfer', [PAY_TO, PRICE], { gas: 100_000n })

  await assertRefused(wallet, { 'x-payment-tx': hash }, 'transaction was reverted')
})

test('pending transaction: refused without using it up, accepted once it is mined', async () => {
  const wallet = await createFundedWallet(chains)
  await base.test.setAutomine(false)
  try {
    const headers = { 'x-payment-tx': await base.transfer(wallet.account, PAY_TO, PRICE), 'x-payment-chain': 'base' }
    await assertRefused(wallet, headers, 'not found or not confirmed yet')

    await base.test.mine({ blocks: 1 })

    assert.equal((await send(wallet, headers)).status, 200)
  } finally {
    await base.test.setAutomine(true)
  }
})

test('finality: with `safe` and `finalized` a payment counts when its block is', async () => {
  const strict = { finalityArbitrum: 'safe', finalityBase: 'finalized' } as const
  const careful = await createDeployGateway(chains, { database, config: strict })
  for (const [chain, blocks] of [[arbitrum, 1] as const, [base, 2] as const]) {
    const wallet = await createFundedWallet(chains)
    const hash = await chain.transfer(wallet.account, PAY_TO, PRICE)
    const headers = { 'x-payment-tx': hash, 'x-payment-chain': chain.name }

    for (let mined = 0; mined < blocks; mined++) {
      const { status, body } = await sendDeploy(careful, wallet, deployBody(), headers)
      assert.deepEqual([status, body.reason], [402, 'not confirmed yet'])
      await chain.test.mine({ blocks: 1 })
    }

    assert.equal((await sendDeploy(careful, wallet, deployBody(), headers)).status, 200)
  }
})

test('a transfer from before the address went into service is no payment', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)
  const late = await createDeployGateway(chains, { config: { payToSince: '2099-01-01T00:00:00Z' } })

  const { status, body } = await sendDeploy(late, wallet, deployBody(), { 'x-payment-tx': hash })

  assert.deepEqual([status, body.reason], [402, 'transaction is older than the receiving address'])
})

test('node down: 502, the hash is not consumed, and the next endpoint in the list is asked', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await pay(chains, wallet, PRICE)
  const dead = 'http://127.0.0.1:1'
  const down = await createDeployGateway(chains, { database, config: { rpcArbitrum: [dead, dead] } })
  const fallback = await createDeployGateway(chains, { database, config: { rpcArbitrum: [dead, arbitrum.url] } })

  const { status, body } = await sendDeploy(down, wallet, deployBody(), { 'x-payment-tx': hash })

  assert.deepEqual([status, body.error], [502, 'Could not verify payment, the hash was not consumed'])
  assert.equal((await sendDeploy(fallback, wallet, deployBody(), { 'x-payment-tx': hash })).status, 200)
})

test('node of another chain: its answers do not count, whatever they say', async () => {
  const wallet = await createFundedWallet(chains)
  // On base, tokens at the addresses of arbitrum can be anything.
  const hash = await base.transfer(wallet.account, PAY_TO, PRICE)
  const lying = await createDeployGateway(chains, { database, config: { rpcArbitrum: [base.url] } })
  const mixed = await createDeployGateway(chains, { database, config: { rpcArbitrum: [base.url, arbitrum.url] } })

  const refused = await sendDeploy(lying, wallet, deployBody(), { 'x-payment-tx': hash })
  assert.equal(refused.status, 502)
  const notThere = await sendDeploy(mixed, wallet, deployBody(), { 'x-payment-tx': hash })
  assert.deepEqual([notThere.status, notThere.body.reason], [402, 'not found or not confirmed yet'])
})

test('contract wallet: it signs by EIP-1271 when switched on, and pays with its own tokens', async () => {
  const owner = createTestWallet()
  const address = await arbitrum.deploy(owner.account, 'TestWallet', [owner.address])
  await arbitrum.fund(address, DOLLAR)
  const hash = await arbitrum.call(owner.account, address, 'TestWallet', 'send', [
    arbitrum.tokenAddress(),
    PAY_TO,
    PRICE,
  ])
  const contract = { ...owner, sign: () => owner.sign({ wallet: address }) }
  const open = await createDeployGateway(chains, { database, config: { contractWallets: true } })

  assert.equal((await send(contract, { 'x-payment-tx': hash })).status, 401, 'off by default')
  const thief = createTestWallet()
  const forged = { ...thief, sign: () => thief.sign({ wallet: address }) }
  assert.equal((await sendDeploy(open, forged, deployBody(), { 'x-payment-tx': hash })).status, 401)
  const { status } = await sendDeploy(open, contract, deployBody(), { 'x-payment-tx': hash })

  assert.equal(status, 200)
  assert.equal(await readPool(gateway, address), PRICE)
})

test('an account with code signs with its key (EIP-7702), also where contract wallets are switched on', async () => {
  const wallet = await createFundedWallet(chains)
  const delegate = await arbitrum.deploy(wallet.account, 'TestWallet', [createTestWallet().address])
  const hash = await arbitrum.transfer(wallet.account, PAY_TO, PRICE)
  await arbitrum.test.setCode({ address: wallet.address, bytecode: `0xef0100${delegate.slice(2)}` })
  const open = await createDeployGateway(chains, { database, config: { contractWallets: true } })

  const { status } = await sendDeploy(open, wallet, deployBody(), { 'x-payment-tx': hash })

  assert.equal(status, 200)
})

test('nothing is asked or taken when the body, the name or the limits refuse the request', async () => {
  const [owner, wallet] = [await createFundedWallet(chains), await createFundedWallet(chains)]
  const taken = deployBody({ uniqueName: newName() })
  assert.equal((await send(owner, { 'x-payment-tx': await pay(chains, owner, PRICE) }, taken)).status, 200)
  const hash = await pay(chains, wallet, PRICE)
  const limited = await createDeployGateway(chains, { database, config: { deploysPerDay: 1, projectsMax: 1 } })

  const upper = { ...taken, uniqueName: taken.uniqueName.toUpperCase() }
  for (const headers of [{}, { 'x-payment-tx': hash }]) {
    const answer = await send(wallet, headers as Record<string, string>, upper)
    assert.deepEqual([answer.status, answer.body], [409, { error: 'uniqueName already taken' }])
  }
  assert.equal((await send(wallet, { 'x-payment-tx': hash }, deployBody({ months: 0 }))).status, 400)
  const tooMany = await sendDeploy(limited, owner, deployBody(), { 'x-payment-tx': await pay(chains, owner, PRICE) })
  assert.equal(tooMany.status, 429)
  assert.ok(Number(tooMany.headers['retry-after']) > 0)

  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200, 'the hash is still good')
})

test('balances are read from the chain, with all six decimals', async () => {
  const { address } = createTestWallet()
  await base.fund(address, 18n * DOLLAR, 'usdc')
  await base.fund(address, 1n, 'usdt')

  const { status, body } = await gateway.request({ url: `/agent/balance/${address}?chain=Base` })

  assert.equal(status, 200)
  assert.deepEqual([body.address, body.chain, body.chain_id], [address, 'base', 8453])
  assert.deepEqual(body.balances, [
    {
      token: 'usdc',
      symbol: 'USDC',
      address: base.tokenAddress('usdc'),
      balance: '18.000000',
      balance_raw: '18000000',
      decimals: 6,
    },
    {
      token: 'usdt',
      symbol: 'USDT',
      address: base.tokenAddress('usdt'),
      balance: '0.000001',
      balance_raw: '1',
      decimals: 6,
    },
  ])
  const lower = await gateway.request({ url: `/agent/balance/${address.toUpperCase().replace('0X', '0x')}` })
  assert.equal(lower.body.balances[0].balance, '0.000000')
})
