/** Credit over the life of projects: sharing, redeploys, usage, prices that change, and chains that change their mind. */
import assert from 'node:assert/strict'
import { rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { createLog } from '@warren/kit/log'
import { until } from '@warren/kit/testing/until'
import { CHAINS } from '../chains/table.ts'
import { applyCredit } from '../deployments/apply-credit.ts'
import { PAY_TO } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import {
  activate,
  createDeployGateway,
  createFundedWallet,
  DOLLAR,
  deployBody,
  PRICE,
  pay,
  readPool,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { createTestWallet } from '../testing/wallet.ts'
import { meterProjects } from './meter.ts'
import { addEntry, createAndLockWallet } from './pool.ts'
import { deleteExpiredQuotes } from './quotes.ts'
import { recheckPayments } from './recheck.ts'
import { recordPayment } from './record.ts'
import { pauseProjects } from './stop-unpaid.ts'
import type { VerifiedPayment } from './verify.ts'

const chains = await startChains()
const { arbitrum, base } = chains
const database = await createTestDatabase()
const gateway = await createDeployGateway(chains, { database })
const { deps } = gateway
type Wallet = Parameters<typeof sendDeploy>[1]
const send = (wallet: Wallet, headers: Record<string, string> = {}, body: object = deployBody()) =>
  sendDeploy(gateway, wallet, body, headers)
const payAndSend = async (wallet: Wallet, raw: bigint, body: object = deployBody()) =>
  send(wallet, { 'x-payment-tx': await pay(chains, wallet, raw) }, body)

const isWaitingForLock = async () =>
  (
    await database.pool.query(
      `select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'`,
    )
  ).rowCount! > 0

const readRow = async (table: string, id: string) =>
  (await database.pool.query(`select * from gateway.${table} where id = $1`, [id])).rows[0]

test('credit is shared with active projects only on request, and the answer warns', async () => {
  const wallet = await createFundedWallet(chains)
  assert.equal((await payAndSend(wallet, 2n * DOLLAR)).status, 200)

  const refused = await send(wallet)
  assert.deepEqual([refused.status, refused.body.active_projects], [402, 1])
  assert.match(refused.body.warning, /X-Use-Existing-Credits: true/)
  for (const value of ['true', '1', 'TRUE']) {
    const shared = await send(wallet, { 'x-use-existing-credits': value })
    assert.equal(shared.status, 200)
    assert.match(shared.body.message, /credit is shared/)
  }
  assert.equal((await send(wallet, { 'x-use-existing-credits': 'yes' })).status, 402)
})

test('parallel deployments on credit: the lock lets one pass without the header', async () => {
  const wallet = await createFundedWallet(chains)
  const first = await payAndSend(wallet, 2n * DOLLAR)
  await database.pool.query(`update gateway.projects set status = 'failed' where id = $1`, [first.body.projectId])

  const answers = await Promise.all(Array.from({ length: 6 }, () => send(wallet)))

  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 402, 402, 402, 402, 402])
})

test('a redeploy keeps the project, is free in paid time, and replaces an unfinished deployment', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const first = await payAndSend(wallet, PRICE, body)

  const second = await send(wallet, {}, { ...body, displayName: 'Another name' })

  assert.equal(second.status, 200)
  assert.equal(second.body.projectId, first.body.projectId)
  assert.notEqual(second.body.deploymentId, first.body.deploymentId)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  const old = await readRow('deployments', first.body.deploymentId)
  assert.deepEqual([old.status, old.reason], ['cancelled', 'superseded'])
  const months = await send(wallet, {}, { ...body, months: 2 })
  assert.deepEqual([months.status, months.body.amount_usd], [402, 0.5], 'two months cost one dollar, half is there')
  const topUp = await payAndSend(wallet, 123n, { ...body, displayName: 'Third' })
  assert.equal(topUp.status, 200)
  assert.equal(await readPool(gateway, wallet.address), PRICE + 123n)
})

test('duplicate deploys: the same request again is the same deployment, while it is unfinished', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const first = await payAndSend(wallet, PRICE, body)

  const answers = await Promise.all([send(wallet, {}, body), send(wallet, {}, body), payAndSend(wallet, 5n, body)])
  for (const { status, body: answer } of answers) {
    assert.equal(status, 200)
    assert.equal(answer.deploymentId, first.body.deploymentId)
  }
  assert.equal(await readPool(gateway, wallet.address), PRICE + 5n)

  await activate(gateway, first.body.projectId)
  const later = await send(wallet, {}, body)
  assert.equal(later.status, 200)
  assert.notEqual(later.body.deploymentId, first.body.deploymentId)
})

test('price change after a quote: the price that was asked is honoured until it expires', async () => {
  let nowMs = Date.now()
  const options = { database, now: () => new Date(nowMs) }
  const cheap = await createDeployGateway(chains, options)
  const dear = await createDeployGateway(chains, { ...options, config: { monthlyRateMicroUsd: 5_000_000 } })
  const wallet = await createFundedWallet(chains)
  const [first, second] = [deployBody(), deployBody()]
  assert.equal((await sendDeploy(cheap, wallet, first)).body.amount_usd, 0.5)
  assert.equal((await sendDeploy(cheap, wallet, second)).body.amount_usd, 0.5)

  nowMs += 20 * 60_000
  const repeated = await sendDeploy(dear, wallet, first)
  assert.equal(repeated.body.amount_usd, 0.5, 'asked again, still honoured')
  const paid = await sendDeploy(dear, wallet, first, { 'x-payment-tx': await pay(chains, wallet, PRICE) })
  assert.equal(paid.status, 200)

  nowMs += 11 * 60_000
  await deleteExpiredQuotes.run(dear.deps)
  const late = await sendDeploy(dear, wallet, second)
  assert.equal(late.body.amount_usd, 5, 'asking at the new price did not extend the old one')
})

test('rows cannot be written after a good payment: 500, the credit stays, and the client can continue with it', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const uploads = path.join(deps.config.dataDir, 'uploads')
  await rm(uploads, { recursive: true, force: true })
  await writeFile(uploads, 'not a directory')
  const hash = await pay(chains, wallet, PRICE)
  let failed: Awaited<ReturnType<typeof send>>
  try {
    failed = await send(wallet, { 'x-payment-tx': hash }, body)
  } finally {
    await rm(uploads)
  }

  assert.equal(failed.status, 500)
  assert.deepEqual(Object.keys(failed.body), ['error'])
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal((await send(wallet, { 'x-payment-tx': hash }, body)).status, 409)
  assert.equal((await send(wallet, { 'x-use-existing-credits': 'true' }, body)).status, 200)
})

test('a balance that cannot be read counts as zero: the wallet is asked to pay, and its credit is there afterwards', async () => {
  const wallet = await createFundedWallet(chains)
  const first = await payAndSend(wallet, 2n * DOLLAR)
  await database.pool.query(`update gateway.projects set status = 'failed' where id = $1`, [first.body.projectId])
  const body = deployBody()
  const hash = await pay(chains, wallet, PRICE)
  await database.pool.query('alter table gateway.wallets rename column balance_micro to unreadable')
  let [asked, paid]: Awaited<ReturnType<typeof send>>[] = []
  try {
    asked = await send(wallet, {}, body)
    paid = await send(wallet, { 'x-payment-tx': hash }, body)
  } finally {
    await database.pool.query('alter table gateway.wallets rename column unreadable to balance_micro')
  }

  assert.equal(asked!.status, 402)
  assert.deepEqual([asked!.body.amount_usd, asked!.body.current_credit_balance_usd], [0.5, 0])
  assert.equal(paid!.status, 500, 'money that cannot be recorded is not taken')
  assert.equal(await readPool(gateway, wallet.address), 2n * DOLLAR)
  assert.equal((await send(wallet, {}, body)).status, 200)
  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200, 'its hash was not consumed')
})

test('two wallets pay for one new name at the same time: one gets it, the other keeps its money as credit', async () => {
  const wallets = [await createFundedWallet(chains), await createFundedWallet(chains)]
  const body = deployBody()

  const answers = await Promise.all(wallets.map((wallet) => payAndSend(wallet, PRICE, body)))

  assert.deepEqual(answers.map(({ status }) => status).sort(), [200, 409])
  const loser = wallets[answers.findIndex(({ status }) => status === 409)]!
  // Refused before anything was recorded, or after: in both cases the money can be used.
  const pool = await readPool(gateway, loser.address)
  const again = pool === PRICE ? await send(loser) : undefined
  assert.ok(pool === 0n || again?.status === 200)
})

test('usage is charged per minute while an app is served, and an empty pool pauses it until the next payment', async () => {
  let nowMs = Date.now()
  const now = () => new Date(nowMs)
  const metered = { ...deps, now, config: { ...deps.config, monthlyRateMicroUsd: 730 * 60 * 300_000 } }
  const wallet = await createFundedWallet(chains)
  const { body } = await payAndSend(wallet, PRICE)
  await meterProjects.run(metered)
  assert.equal(await readPool(gateway, wallet.address), PRICE, 'queued costs nothing')
  await activate(gateway, body.projectId, now())

  nowMs += 60_000
  await Promise.all([meterProjects.run(metered), meterProjects.run(metered)])
  assert.equal(await readPool(gateway, wallet.address), PRICE - 300_000n, 'charged once by two processes')
  nowMs += 3_600_000
  await meterProjects.run(metered)
  assert.equal(await readPool(gateway, wallet.address), PRICE - 300_000n, 'time without a gateway is free')
  nowMs += 60_000
  await meterProjects.run(metered)

  assert.equal(await readPool(gateway, wallet.address), 0n, 'never below zero')
  const paused = await readRow('projects', body.projectId)
  assert.deepEqual([paused.status, paused.paused_at?.getTime()], ['pending', nowMs])
  assert.ok(paused.url)
  const readUnpaid = async () =>
    (
      await database.pool.query('select unpaid_since from gateway.wallets where address = $1', [
        wallet.address.toLowerCase(),
      ])
    ).rows[0].unpaid_since
  assert.equal((await readUnpaid())?.getTime(), nowMs)
  const topUp = await payAndSend(wallet, 1n)
  assert.deepEqual([topUp.status, topUp.body.active_projects], [402, 1], 'a paused project counts as active')
  assert.equal(await readUnpaid(), null)
})

test('a payment that arrives while unpaid projects are deleted keeps its project', async () => {
  const wallet = await createFundedWallet(chains)
  const address = wallet.address.toLowerCase()
  const { body } = await payAndSend(wallet, PRICE)
  await activate(gateway, body.projectId)
  const long = new Date(deps.now().getTime() - 73 * 3_600_000)
  await database.pool.query(
    `insert into gateway.ledger (wallet, amount_micro, kind, project_id) values ($1, $2, 'usage', $3)`,
    [address, -PRICE, body.projectId],
  )
  await deps.db.transaction().execute((tx) => pauseProjects(tx, address, long))
  const payment: VerifiedPayment = {
    hash: await pay(chains, wallet, PRICE),
    chain: CHAINS.arbitrum,
    token: CHAINS.arbitrum.tokens.usdc,
    amountMicro: PRICE,
    blockNumber: 1n,
    blockHash: `0x${'1'.repeat(64)}`,
  }

  let sweeping: Promise<void> | undefined
  await deps.db.transaction().execute(async (tx) => {
    await createAndLockWallet(tx, address)
    await recordPayment(tx, payment, { wallet: address, uniqueName: 'other', months: 1 }, deps.now())
    await addEntry(tx, { kind: 'payment', wallet: address, amountMicro: PRICE, hash: payment.hash })
    let hasSwept = false
    sweeping = applyCredit.run(deps).finally(() => {
      hasSwept = true
    })
    await until(async () => hasSwept || (await isWaitingForLock()), 'the sweep has decided or waits for this payment')
  })
  await sweeping

  assert.equal((await readRow('projects', body.projectId)).status, 'pending')
  await applyCredit.run(deps)
  assert.equal((await readRow('projects', body.projectId)).status, 'pending')
})

test('reorged after the grant: credit is taken back, the project stops, and the hash can be presented again', async () => {
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const raw = { gas: 100_000n }
  await base.test.setAutomine(true)
  const hash = await base.call(wallet.account, base.tokenAddress(), 'TestToken', 'transfer', [PAY_TO, PRICE], raw)
  const signed = await base.reader.request({ method: 'eth_getRawTransactionByHash' as never, params: [hash] as never })
  const headers = { 'x-payment-tx': hash, 'x-payment-chain': 'base' }
  const granted = await send(wallet, headers, body)
  assert.equal(granted.status, 200)

  await base.reorg(1)
  await recheckPayments.run(deps)

  assert.equal(await readPool(gateway, wallet.address), 0n)
  const deployment = await readRow('deployments', granted.body.deploymentId)
  assert.deepEqual([deployment.status, deployment.reason], ['cancelled', 'the chain dropped the payment for it'])
  assert.equal((await readRow('projects', granted.body.projectId)).status, 'failed')
  assert.equal((await send(wallet, headers, body)).body.reason, 'not found or not confirmed yet')

  await base.fund(wallet.address, 100n * DOLLAR)
  await base.reader.request({ method: 'eth_sendRawTransaction', params: [signed as `0x${string}`] })
  const again = await send(wallet, headers, body)
  assert.equal(again.status, 200, JSON.stringify(again.body))
  assert.equal(await readPool(gateway, wallet.address), PRICE)
  assert.equal((await send(wallet, headers, body)).status, 409)
})

test('reorged into another block: the payment follows its transaction, and nothing is taken back', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await base.transfer(wallet.account, PAY_TO, PRICE)
  const signed = await base.reader.request({ method: 'eth_getRawTransactionByHash' as never, params: [hash] as never })
  assert.equal((await send(wallet, { 'x-payment-tx': hash, 'x-payment-chain': 'base' })).status, 200)
  const readBlock = async () =>
    (await database.pool.query('select block_hash, status from gateway.payments where hash = $1', [hash])).rows[0]
  const before = await readBlock()

  await base.reorg(1)
  await base.fund(wallet.address, 100n * DOLLAR)
  await base.reader.request({ method: 'eth_sendRawTransaction', params: [signed as `0x${string}`] })
  await recheckPayments.run(deps)

  assert.equal(await readPool(gateway, wallet.address), PRICE)
  const moved = await readBlock()
  assert.equal(moved.status, 'accepted')
  assert.notEqual(moved.block_hash, before.block_hash)
})

test('reorged after the credit was used: the pool is in debt, which the next payment has to cover', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await base.transfer(wallet.account, PAY_TO, PRICE)
  const { body } = await send(wallet, { 'x-payment-tx': hash, 'x-payment-chain': 'base' })
  await activate(gateway, body.projectId)
  await database.pool.query(
    `insert into gateway.ledger (wallet, amount_micro, kind, project_id) values ($1, -100000, 'usage', $2)`,
    [wallet.address.toLowerCase(), body.projectId],
  )

  await base.reorg(1)
  await recheckPayments.run(deps)

  assert.equal(await readPool(gateway, wallet.address), -100_000n)
  assert.equal((await readRow('projects', body.projectId)).status, 'pending')
  const asked = await send(wallet, { 'x-use-existing-credits': 'true' })
  assert.deepEqual([asked.status, asked.body.amount_usd, asked.body.current_credit_balance_usd], [402, 0.6, -0.1])
})

test('a payment is final when its block is safe, and is not read again', async () => {
  const wallet = await createFundedWallet(chains)
  const hash = await arbitrum.transfer(wallet.account, PAY_TO, PRICE)
  assert.equal((await send(wallet, { 'x-payment-tx': hash })).status, 200)
  const readStatus = async () =>
    (await database.pool.query('select status from gateway.payments where hash = $1', [hash])).rows[0].status

  await recheckPayments.run(deps)
  assert.equal(await readStatus(), 'accepted')
  await arbitrum.test.mine({ blocks: 2 })
  await recheckPayments.run(deps)

  assert.equal(await readStatus(), 'safe')
})

test('a node that is down or behind decides nothing about payments that were accepted', async () => {
  const wallet = await createFundedWallet(chains)
  assert.equal((await payAndSend(wallet, PRICE)).status, 200)
  const down = await createDeployGateway(chains, { database, config: { rpcArbitrum: ['http://127.0.0.1:1'] } })

  await recheckPayments.run(down.deps).catch(() => {})
  await database.pool.query(`update gateway.payments set block_number = block_number + 1000000 where wallet = $1`, [
    wallet.address.toLowerCase(),
  ])
  await recheckPayments.run(deps)

  assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('fee token: an alert fires when the receiving address got less than the token states', async () => {
  const lines: string[] = []
  const log = createLog({
    name: 'test',
    level: 'error',
    format: 'json',
    destination: { write: (line) => void lines.push(line) },
  })
  const watched = { ...deps, log }
  const wallet = await createFundedWallet(chains)
  const operator = createTestWallet()
  assert.equal((await payAndSend(wallet, PRICE)).status, 200)
  await recheckPayments.run(watched)
  assert.deepEqual(lines, [], 'an honest token is quiet')

  await arbitrum.call(operator.account, arbitrum.tokenAddress(), 'TestToken', 'setHiddenFee', [100n])
  const hash = await arbitrum.transfer(wallet.account, PAY_TO, PRICE)
  await arbitrum.call(operator.account, arbitrum.tokenAddress(), 'TestToken', 'setHiddenFee', [0n])
  await send(wallet, { 'x-payment-tx': hash })
  await recheckPayments.run(watched)
  await recheckPayments.run(watched)

  assert.equal(lines.length, 1, 'once per payment')
  assert.match(lines[0]!, /ALERT.*take a fee/)
})

test('environment variables are encrypted at rest', async () => {
  const wallet = await createFundedWallet(chains)
  const secret = 'a very secret value'
  const body = deployBody({ settings: { runEnvs: { TOKEN: secret }, buildVars: { B: 'c' } } })
  const { body: answer } = await payAndSend(wallet, PRICE, body)

  const row = await readRow('deployments', answer.deploymentId)

  assert.doesNotMatch(JSON.stringify(row.settings), /secret|TOKEN/)
  assert.equal(row.secrets.includes(secret), false)
  const opened = deps.secretBox.open(answer.deploymentId, row.secrets)
  assert.deepEqual(opened, { runEnvs: { TOKEN: secret }, buildVars: { B: 'c' } })
  assert.throws(() => deps.secretBox.open(answer.projectId, row.secrets))
})
