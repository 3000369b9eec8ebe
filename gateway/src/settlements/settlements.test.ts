/** Payments by x402 and MPP: with the clients that others publish, with every lie, in parallel, and interrupted. */
import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { registerExactEvmScheme } from '@x402/evm/exact/client'
import { decodePaymentResponseHeader, wrapFetchWithPayment, x402Client } from '@x402/fetch'
import { Challenge, Credential, evm as evmTypes, Receipt, x402 } from 'mppx'
import { evm, Mppx } from 'mppx/client'
import { keccak256 } from 'viem'
import { CHAINS, type ChainName } from '../chains/table.ts'
import { startTestChain } from '../testing/anvil.ts'
import { PAY_TO, type TestGateway } from '../testing/app.ts'
import {
  createTestSettler,
  type Lies,
  sendAuthorization,
  signAuthorization,
  x402Header,
} from '../testing/authorizations.ts'
import { createTestDatabase } from '../testing/database.ts'
import {
  createDeployGateway,
  createFundedWallet,
  DOLLAR,
  deployBody,
  newName,
  PRICE,
  readPool,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { startGatewayProcess } from '../testing/gateway-process.ts'
import { startRpcProxy } from '../testing/rpc-proxy.ts'
import { createTestWallet, type TestWallet } from '../testing/wallet.ts'
import { checkSettlerFunds, reconcileSettlements } from './reconcile.ts'

const chains = await startChains()
const settler = await createTestSettler(chains)
const database = await createTestDatabase()
const gateway = await createDeployGateway(chains, { database, config: { settlerKey: settler.key } })
const url = await gateway.app.listen({ host: '127.0.0.1', port: 0 })
gateway.deps.address.setPort(Number(new URL(url).port))

/** What docs/gateway.md recommends: fresh headers for each request, inside of the client that pays. */
const signingFetch =
  (wallet: TestWallet, headers: Record<string, string> = {}): typeof fetch =>
  async (input, init) => {
    const request = new Request(input, init)
    for (const [name, value] of Object.entries({ ...(await wallet.sign()), ...headers }))
      request.headers.set(name, value)
    return fetch(request)
  }

const balanceOf = (wallet: TestWallet, chain: ChainName = 'arbitrum') =>
  chains[chain].reader.readContract({
    address: chains[chain].tokenAddress(),
    abi: [
      {
        type: 'function',
        name: 'balanceOf',
        stateMutability: 'view',
        inputs: [{ type: 'address' }],
        outputs: [{ type: 'uint256' }],
      },
    ],
    functionName: 'balanceOf',
    args: [wallet.address],
  }) as Promise<bigint>

const post = (body: unknown) => ({ method: 'POST', body: JSON.stringify(body) })
const listSettlements = async (wallet: TestWallet) =>
  (
    await database.pool.query(`select * from gateway.settlements where payer = $1 order by created_at`, [
      wallet.address.toLowerCase(),
    ])
  ).rows

for (const chain of ['arbitrum', 'base'] as const) {
  test(`the x402 client of its authors pays on ${chain}, and its settlement is no second payment`, async () => {
    const wallet = await createFundedWallet(chains)
    const client = registerExactEvmScheme(new x402Client(), { signer: wallet.account })
    const paying = wrapFetchWithPayment(signingFetch(wallet, { 'x-payment-chain': chain }), client)

    const response = await paying(`${url}/agent/deploy`, post(deployBody()))

    const answer = (await response.json()) as { projectId: string; deploymentId: string; error?: string }
    assert.equal(response.status, 200, answer.error ?? 'failed')
    const receipt = decodePaymentResponseHeader(response.headers.get('payment-response')!)
    assert.deepEqual([receipt.success, receipt.network], [true, `eip155:${CHAINS[chain].id}`])
    assert.equal(await readPool(gateway, wallet.address), PRICE)
    assert.equal(await balanceOf(wallet, chain), 100n * DOLLAR - PRICE)
    const headers = { 'x-payment-tx': String(receipt.transaction), 'x-payment-chain': chain }
    const again = await sendDeploy(gateway, wallet, deployBody(), headers)
    assert.deepEqual([again.status, again.body.deploymentId], [409, answer.deploymentId])
    assert.equal(await readPool(gateway, wallet.address), PRICE)
  })

  test(`the MPP client of its authors pays on ${chain}`, async () => {
    const wallet = await createFundedWallet(chains)
    const { fetch: paying } = Mppx.create({
      polyfill: false,
      fetch: signingFetch(wallet),
      methods: [
        evm.charge({
          account: wallet.account,
          networks: [CHAINS[chain].id],
          currencies: [CHAINS[chain].tokens.usdc.address],
          authorization: { name: 'USD Coin', version: '2' },
          decimals: 6,
          maxAmount: '1',
        }),
      ],
      // The other chain is refused by the policy above.
      orderChallenges: (candidates) =>
        candidates.filter(({ challenge }) => JSON.stringify(challenge.request).includes(String(CHAINS[chain].id))),
    })

    const response = await paying(`${url}/agent/deploy`, post(deployBody()))

    assert.equal(response.status, 200, await response.clone().text())
    const receipt = Receipt.fromResponse(response)
    assert.equal(receipt.status, 'success')
    assert.equal(await readPool(gateway, wallet.address), PRICE)
    assert.equal(await balanceOf(wallet, chain), 100n * DOLLAR - PRICE)
    const [row] = await listSettlements(wallet)
    assert.deepEqual([row.transport, row.status], ['mpp', 'settled'])
  })
}

test('the offers name configured URLs, both chains and the exact amount, and the body stays as it is', async () => {
  const { status, headers, body } = await sendDeploy(gateway, createTestWallet(), deployBody({ months: 3 }), {
    'x-payment-chain': 'base',
    host: 'evil.example',
  })

  assert.equal(status, 402)
  assert.equal(body.amount_token, '1500000')
  const required = x402.Header.decodePaymentRequired(headers['payment-required'] as string)
  assert.equal(required.resource.url, `${url}/agent/deploy`)
  assert.deepEqual(
    required.accepts.map(({ network, amount, payTo }) => [network, amount, payTo]),
    [
      ['eip155:8453', '1500000', PAY_TO],
      ['eip155:42161', '1500000', PAY_TO],
    ],
  )
  const challenges = Challenge.deserializeList(headers['www-authenticate'] as string)
  assert.deepEqual(
    challenges.map(({ realm, request }) => [realm, request.amount, request.currency]),
    [
      ['127.0.0.1', '1500000', CHAINS.base.tokens.usdc.address],
      ['127.0.0.1', '1500000', CHAINS.arbitrum.tokens.usdc.address],
    ],
  )
})

test('offers are never below half a dollar; the rest is credit', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await chains.arbitrum.transfer(wallet.account, PAY_TO, PRICE - 1n)
  const body = deployBody()
  const short = await sendDeploy(gateway, wallet, body, { 'x-payment-tx': hash })
  assert.equal(short.body.amount_token, '1')
  const { accepts } = x402.Header.decodePaymentRequired(short.headers['payment-required'] as string)
  assert.equal(accepts[0]!.amount, '500000')

  const paid = await sendDeploy(gateway, wallet, body, x402Header(await signAuthorization(wallet)))

  assert.equal(paid.status, 200, paid.body.error)
  assert.equal(await readPool(gateway, wallet.address), 2n * PRICE - 1n)
})

test('without the key of a settler nothing is offered, and such a payment is refused', async () => {
  const plain = await createDeployGateway(chains)
  const wallet = await createFundedWallet(chains)

  const asked = await sendDeploy(plain, wallet, deployBody())
  const refused = await sendDeploy(plain, wallet, deployBody(), x402Header(await signAuthorization(wallet)))

  assert.equal(asked.headers['payment-required'], undefined)
  assert.equal(asked.headers['www-authenticate'], undefined)
  assert.deepEqual([refused.status, refused.body.reason], [402, 'this gateway takes payments by X-Payment-Tx only'])
})

test('every lie in an authorization is refused with its reason, and nothing is sent or stored', async () => {
  const wallet = await createFundedWallet(chains)
  const [nowS, other] = [BigInt(Math.floor(Date.now() / 1000)), createTestWallet()]
  const sent = await settler.countSent()
  const cases: [string, Lies, Parameters<typeof x402Header>[2]?][] = [
    ['authorization is from another wallet', { from: other.address }],
    ['authorization is not for pay_to', { to: other.address }],
    ['authorization has another amount', {}, { amount: '500001' }],
    ['amount is less than required', { value: PRICE - 1n }],
    ['wrong token contract', {}, { asset: CHAINS.arbitrum.tokens.usdt.address }],
    ['wrong chain', {}, { network: 'eip155:1' }],
    ['authorization is not valid yet', { validAfter: nowS + 60n }],
    ['authorization has expired', { validBefore: nowS + 5n }],
    ['authorization is valid for too long', { validBefore: nowS + 86_400n }],
    ['authorization has a bad signature', { chainId: 8453 }],
    ['authorization has a bad signature', { token: CHAINS.arbitrum.tokens.usdt.address }],
  ]
  for (const [reason, lies, claims] of cases) {
    const header = x402Header(await signAuthorization(wallet, 'arbitrum', lies), 'arbitrum', claims)
    const { status, body } = await sendDeploy(gateway, wallet, deployBody(), header)
    assert.deepEqual([status, body.error, body.reason], [402, 'Payment verification failed', reason])
  }
  const poor = createTestWallet()
  const empty = await sendDeploy(gateway, poor, deployBody(), x402Header(await signAuthorization(poor)))
  assert.equal(empty.status, 402)
  assert.match(empty.body.reason, /^the token refuses the transfer: /)

  assert.equal(await settler.countSent(), sent)
  assert.deepEqual(await listSettlements(wallet), [])
  assert.equal(await readPool(gateway, wallet.address), 0n)
})

test('an authorization of another wallet cannot be used, although its signature is good', async () => {
  const [victim, thief] = [await createFundedWallet(chains), createTestWallet()]

  const { status, body } = await sendDeploy(gateway, thief, deployBody(), x402Header(await signAuthorization(victim)))

  assert.deepEqual([status, body.reason], [402, 'authorization is from another wallet'])
  assert.equal(await balanceOf(victim), 100n * DOLLAR)
})

test('an MPP credential is bound to its offer: gateway, body, time and nonce', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const { headers } = await sendDeploy(gateway, wallet, body)
  const [challenge] = Challenge.deserializeList(headers['www-authenticate'] as string)
  const answer = async (changed: Partial<Challenge.Challenge>, nonceOf = { ...challenge!, ...changed }) => {
    const { signature, ...rest } = await signAuthorization(wallet, 'arbitrum', {
      nonce: evmTypes.Types.challengeHash(nonceOf) as `0x${string}`,
    })
    const { value, validAfter, validBefore } = rest
    const numbers = { value: `${value}`, validAfter: `${validAfter}`, validBefore: `${validBefore}` }
    const payload = { type: 'authorization', ...rest, ...numbers, signature }
    return Credential.serialize(Credential.from({ challenge: { ...challenge!, ...changed }, payload }))
  }
  const send = async (authorization: string, sentBody: unknown = body) =>
    (await sendDeploy(gateway, wallet, sentBody, { authorization })).body.reason

  assert.equal(await send(await answer({ realm: 'elsewhere' })), 'offer is not of this gateway')
  assert.equal(await send(await answer({ id: 'forged' })), 'offer is not of this gateway')
  const later = new Date(Date.now() + 3_600_000).toISOString()
  assert.equal(await send(await answer({ expires: later })), 'offer is not of this gateway')
  const cheaper = { ...challenge!.request, amount: '1' }
  assert.equal(await send(await answer({ request: cheaper })), 'authorization has another amount')
  assert.equal(await send(await answer({}), deployBody()), 'offer is for another request body')
  assert.equal(await send(await answer({}, { ...challenge!, id: 'other' })), 'authorization is for another offer')
  assert.deepEqual(await listSettlements(wallet), [])
  const paid = await sendDeploy(gateway, wallet, body, { authorization: await answer({}) })
  assert.equal(paid.status, 200, paid.body.error)
})

test('an offer of MPP expires', async () => {
  let nowMs = Date.now()
  const slow = await createDeployGateway(chains, { now: () => new Date(nowMs), config: { settlerKey: settler.key } })
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const { headers } = await sendDeploy(slow, wallet, body)
  const [challenge] = Challenge.deserializeList(headers['www-authenticate'] as string)
  nowMs += 301_000
  const nonce = evmTypes.Types.challengeHash(challenge!) as `0x${string}`
  const validBefore = BigInt(Math.floor(nowMs / 1000)) + 200n
  const { signature, ...rest } = await signAuthorization(wallet, 'arbitrum', { nonce, validBefore })
  const numbers = { value: `${rest.value}`, validAfter: '0', validBefore: `${validBefore}` }
  const payload = { type: 'authorization', ...rest, ...numbers, signature }
  const authorization = Credential.serialize(Credential.from({ challenge: challenge!, payload }))

  assert.equal((await sendDeploy(slow, wallet, body, { authorization })).body.reason, 'offer has expired')
})

test('what cannot be read, two ways to pay at once, and x402 version 1 are 400', async () => {
  const wallet = await createFundedWallet(chains)
  const good = x402Header(await signAuthorization(wallet))
  const hash = `0x${'1'.repeat(64)}`
  const cases: Record<string, string>[] = [
    { 'payment-signature': 'junk' },
    { 'payment-signature': Buffer.from('{}').toString('base64') },
    { 'payment-signature': 'A'.repeat(15_000) },
    { authorization: 'Payment junk' },
    { ...good, 'x-payment-tx': hash },
    { ...good, authorization: 'Payment junk' },
    { authorization: 'Payment junk', 'x-payment-tx': hash },
    { 'x-payment': 'e30=' },
  ]
  for (const headers of cases) {
    const { status, body } = await sendDeploy(gateway, wallet, deployBody(), headers)
    assert.equal(status, 400, `${Object.keys(headers)}: ${JSON.stringify(body)}`)
  }
})

test('a taken name, a reached limit and enough credit come first: the authorization is not used', async () => {
  const [wallet, owner] = [await createFundedWallet(chains), await createFundedWallet(chains)]
  const uniqueName = newName()
  await sendDeploy(gateway, owner, deployBody({ uniqueName }), x402Header(await signAuthorization(owner)))
  const authorization = await signAuthorization(wallet)
  const sent = await settler.countSent()

  const taken = await sendDeploy(gateway, wallet, deployBody({ uniqueName }), x402Header(authorization))
  assert.deepEqual([taken.status, taken.body.error], [409, 'uniqueName already taken'])
  await sendDeploy(gateway, wallet, deployBody(), {
    'x-payment-tx': await chains.arbitrum.transfer(wallet.account, PAY_TO, 2n * PRICE),
  })
  const sharing = { ...x402Header(authorization), 'x-use-existing-credits': 'true' }
  const covered = await sendDeploy(gateway, wallet, deployBody(), sharing)

  assert.equal(covered.status, 200)
  assert.equal(covered.headers['payment-response'], undefined)
  assert.equal(await settler.countSent(), sent)
  assert.deepEqual(await listSettlements(wallet), [])
})

test('one authorization in ten parallel requests is sent once and credited once', async () => {
  const wallet = await createFundedWallet(chains)
  const header = x402Header(await signAuthorization(wallet))
  const sent = await settler.countSent()

  const answers = await Promise.all(Array.from({ length: 10 }, () => sendDeploy(gateway, wallet, deployBody(), header)))

  const statuses = answers.map(({ status }) => status)
  assert.equal(statuses.filter((status) => status === 200).length, 1, statuses.join())
  assert.ok(
    statuses.every((status) => [200, 402, 409, 429].includes(status)),
    statuses.join(),
  )
  assert.equal((await settler.countSent()) - sent, 1)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal(await balanceOf(wallet), 100n * DOLLAR - PRICE)
})

test('parallel payments of several wallets have different account nonces, and all arrive', async () => {
  const wallets = await Promise.all(Array.from({ length: 4 }, () => createFundedWallet(chains)))

  const answers = await Promise.all(
    wallets.map(async (wallet) =>
      sendDeploy(gateway, wallet, deployBody(), x402Header(await signAuthorization(wallet))),
    ),
  )

  assert.deepEqual(
    answers.map(({ status }) => status),
    [200, 200, 200, 200],
  )
  for (const wallet of wallets) assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('another party sends the authorization first: the payment has arrived and counts', async () => {
  const [wallet, stranger] = [await createFundedWallet(chains), createTestWallet()]
  const authorization = await signAuthorization(wallet)
  const sent = await settler.countSent()
  const hash = await sendAuthorization(chains.arbitrum, stranger, authorization)

  const paid = await sendDeploy(gateway, wallet, deployBody(), x402Header(authorization))

  assert.equal(paid.status, 200, paid.body.error)
  assert.equal(decodePaymentResponseHeader(paid.headers['payment-response'] as string).transaction, hash)
  assert.equal(await settler.countSent(), sent, 'no gas is spent')
  assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('another party sent the authorization many blocks ago: it is still found', async () => {
  const [wallet, stranger] = [createTestWallet(), createTestWallet()]
  const arbitrum = await startTestChain('arbitrum')
  const late = await createDeployGateway({ ...chains, arbitrum }, { database, config: { settlerKey: settler.key } })
  await arbitrum.fund(wallet.address, PRICE)
  const authorization = await signAuthorization(wallet)
  const hash = await sendAuthorization(arbitrum, stranger, authorization)
  // Some ten minutes, and an authorization may be valid for fifteen. In parts: a call has a time limit.
  for (let minute = 0; minute < 10; minute++) await arbitrum.test.mine({ blocks: 240 })

  const paid = await sendDeploy(late, wallet, deployBody(), x402Header(authorization))

  assert.equal(paid.status, 200, paid.body.error)
  assert.equal(decodePaymentResponseHeader(paid.headers['payment-response'] as string).transaction, hash)
})

test('another party is faster between our check and our transaction: ours is reverted, the payment counts', async () => {
  const [wallet, stranger] = [await createFundedWallet(chains), createTestWallet()]
  const authorization = await signAuthorization(wallet)
  // Before our transaction reaches the chain.
  let isFirst = true
  const proxy = await startRpcProxy(
    chains.arbitrum.url,
    (_, result) => result,
    '',
    async ({ method }) => {
      if (method !== 'eth_sendRawTransaction' || !isFirst) return
      isFirst = false
      await sendAuthorization(chains.arbitrum, stranger, authorization)
    },
  )
  const raced = await createDeployGateway(chains, {
    database,
    config: { settlerKey: settler.key, rpcArbitrum: [proxy.url] },
  })

  const paid = await sendDeploy(raced, wallet, deployBody(), x402Header(authorization))

  assert.equal(paid.status, 200, paid.body.error)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal(await balanceOf(wallet), 100n * DOLLAR - PRICE)
})

test('the payer spends its tokens before our transaction: 402, nothing is credited, and few such attempts are sent', async () => {
  const [wallet, other] = [await createFundedWallet(chains), createTestWallet()]
  const proxy = await startRpcProxy(
    chains.arbitrum.url,
    (_, result) => result,
    '',
    async ({ method }) => {
      if (method === 'eth_sendRawTransaction') await chains.arbitrum.fund(wallet.address, 0n)
    },
  )
  const config = { settlerKey: settler.key, rpcArbitrum: [proxy.url] }
  const cheated = await createDeployGateway(chains, { database, config })
  const sent = await settler.countSent()

  const statuses: number[] = []
  for (let i = 0; i < 5; i++) {
    await chains.arbitrum.fund(wallet.address, PRICE)
    const answer = await sendDeploy(cheated, wallet, deployBody(), x402Header(await signAuthorization(wallet)))
    statuses.push(answer.status)
    if (i === 0) assert.equal(answer.body.reason, 'the transfer was reverted')
  }

  assert.deepEqual(statuses, [402, 402, 402, 429, 429])
  assert.equal((await settler.countSent()) - sent, 3)
  assert.equal(await readPool(gateway, wallet.address), 0n)
  const honest = await sendDeploy(gateway, other, deployBody())
  assert.equal(honest.status, 402, 'others are not affected')
})

test('the payer sends several authorizations at once: the limit of those on their way holds', async () => {
  const PARALLEL = 4 // As many bodies as are handled at once.
  const wallet = await createFundedWallet(chains)
  // Each passes its simulation before the first is sent; then the tokens are gone, and all of them are reverted.
  const simulated = Promise.withResolvers<void>()
  let simulations = 0
  const proxy = await startRpcProxy(
    chains.arbitrum.url,
    (_, result) => result,
    '',
    async ({ method }) => {
      if (method === 'eth_estimateGas') {
        if (++simulations === PARALLEL) simulated.resolve()
        await simulated.promise
      }
      if (method === 'eth_sendRawTransaction') await chains.arbitrum.fund(wallet.address, 0n)
    },
  )
  const config = { settlerKey: settler.key, rpcArbitrum: [proxy.url] }
  const cheated = await createDeployGateway(chains, { database, config })
  const sent = await settler.countSent()
  const authorizations = await Promise.all(Array.from({ length: PARALLEL }, () => signAuthorization(wallet)))

  const answers = await Promise.all(
    authorizations.map((authorization) => sendDeploy(cheated, wallet, deployBody(), x402Header(authorization))),
  )

  assert.deepEqual(answers.map(({ status }) => status).sort(), [402, 402, 402, 429])
  assert.equal((await settler.countSent()) - sent, 3)
})

/** The lease of the request is over; blocks are later than the authorization. */
async function endLeases({ deps }: Pick<TestGateway, 'deps'>): Promise<void> {
  await deps.database.pool.query(
    `update gateway.settlements set leased_until = now(), created_at = now() - interval '1 minute' where status = 'pending'`,
  )
}

test('the node fails when the transaction is sent: 502, and the payment becomes credit later, once', async () => {
  const wallet = await createFundedWallet(chains)
  let isDown = true
  const proxy = await startRpcProxy(
    chains.arbitrum.url,
    (_, result) => result,
    '',
    ({ method }) => {
      if (method === 'eth_sendRawTransaction' && isDown) throw new Error('down')
    },
  )
  const config = { settlerKey: settler.key, rpcArbitrum: [proxy.url] }
  const shaky = await createDeployGateway(chains, { database, config })
  const header = x402Header(await signAuthorization(wallet))

  const failed = await sendDeploy(shaky, wallet, deployBody(), header)
  assert.equal(failed.status, 502)
  assert.match(failed.body.error, /becomes credit of the wallet/)
  assert.equal((await sendDeploy(shaky, wallet, deployBody(), header)).status, 409, 'it is on its way')
  isDown = false
  await endLeases(shaky)
  await reconcileSettlements.run(shaky.deps)
  await reconcileSettlements.run(shaky.deps)
  await reconcileSettlements.run(shaky.deps)

  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal((await listSettlements(wallet))[0].status, 'settled')
  assert.equal((await sendDeploy(gateway, wallet, deployBody())).status, 200, 'the credit pays')
})

test('a settlement presented as X-Payment-Tx before the background finds it is credited once', async () => {
  const wallet = await createFundedWallet(chains)
  const proxy = await startRpcProxy(chains.arbitrum.url, ({ method }, result) =>
    method === 'eth_getLogs' ? [] : result,
  )
  const config = { settlerKey: settler.key, rpcArbitrum: [proxy.url] }
  const blind = await createDeployGateway(chains, { database, config })
  const pending = sendDeploy(blind, wallet, deployBody(), x402Header(await signAuthorization(wallet)))
  const hash = await until(async () => {
    const [row] = await listSettlements(wallet)
    if (!row?.raw_transaction) return undefined
    const sent = keccak256(row.raw_transaction)
    const receipt = await chains.arbitrum.reader.getTransactionReceipt({ hash: sent }).catch(() => undefined)
    return receipt && sent
  })

  const presented = await sendDeploy(gateway, wallet, deployBody(), { 'x-payment-tx': hash })
  await endLeases(gateway)
  await reconcileSettlements.run(gateway.deps)

  assert.equal(presented.status, 200)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal((await listSettlements(wallet))[0].status, 'settled')
  assert.equal((await pending).status, 502)
})

const CRASHES = {
  'settle.signed': 'the payment is credit',
  'settle.sent': 'the payment is credit',
  'deploy.paid': 'the payment is credit',
  // Last, because it moves the time of the chain.
  'settle.intended': 'nothing was sent',
}

for (const [point, outcome] of Object.entries(CRASHES)) {
  test(`killed at ${point}: ${outcome}, and never twice`, async () => {
    const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-'))
    after(() => rm(crashPoints, { recursive: true, force: true }))
    await writeFile(path.join(crashPoints, point), 'kill')
    const wallet = await createFundedWallet(chains)
    const doomed = await startGatewayProcess(gateway.deps, crashPoints)
    const authorization = await signAuthorization(wallet)
    const headers = { ...(await wallet.sign()), ...x402Header(authorization) }
    const request = { ...post(deployBody()), headers }

    await assert.rejects(fetch(`${doomed.url}/agent/deploy`, request))
    await doomed.ended
    await endLeases(gateway)
    const next = await startGatewayProcess(gateway.deps, crashPoints)

    if (outcome === 'the payment is credit') {
      await until(async () => (await readPool(gateway, wallet.address)) === PRICE, `credit after ${point}`)
      assert.equal(await balanceOf(wallet), 100n * DOLLAR - PRICE)
    } else {
      // Nothing can be sent any more, so the authorization may be tried again, and is too old.
      await chains.arbitrum.test.increaseTime({ seconds: 1_000 })
      await chains.arbitrum.test.mine({ blocks: 3 })
      await until(async () => (await listSettlements(wallet))[0].status === 'failed')
      assert.equal(await balanceOf(wallet), 100n * DOLLAR)
      assert.equal(await readPool(gateway, wallet.address), 0n)
    }
    const repeated = await sendDeploy(gateway, wallet, deployBody(), { 'x-use-existing-credits': 'true' })
    assert.equal(repeated.status, outcome === 'the payment is credit' ? 200 : 402)
    next.child.kill('SIGKILL')
    await next.ended
  })
}

test('a settler without gas is an alert in the log', async () => {
  const alerts: unknown[] = []
  const log = { ...gateway.deps.log, error: (...args: unknown[]) => alerts.push(args) } as never
  await checkSettlerFunds.run({ ...gateway.deps, log })
  assert.equal(alerts.length, 0)
  await chains.base.test.setBalance({ address: settler.address, value: 1_000n })

  await checkSettlerFunds.run({ ...gateway.deps, log })

  assert.match(JSON.stringify(alerts), /"chain":"base".*ALERT: the settler has gas for fewer/)
})
