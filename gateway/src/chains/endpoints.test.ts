/** Nodes that lie, hang or change: what they can and cannot make the gateway believe. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createLog } from '@warren/kit/log'
import { createTestDatabase } from '../testing/database.ts'
import {
  createDeployGateway,
  createFundedWallet,
  deployBody,
  PRICE,
  pay,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { startRpcProxy } from '../testing/rpc-proxy.ts'

const chains = await startChains()
const { arbitrum } = chains
const database = await createTestDatabase()
const withEndpoints = (...rpcArbitrum: string[]) => createDeployGateway(chains, { database, config: { rpcArbitrum } })

test('a receipt of a block that is not sealed yet is no payment, and the hash is not consumed', async () => {
  let isSealed = false
  const early = await startRpcProxy(arbitrum.url, ({ method }, result) =>
    method === 'eth_getTransactionReceipt' && !isSealed ? { ...result, blockHash: `0x${'1'.repeat(64)}` } : result,
  )
  const gateway = await withEndpoints(early.url)
  const wallet = await createFundedWallet(chains)
  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }

  const { status, body } = await sendDeploy(gateway, wallet, deployBody(), headers)
  assert.deepEqual([status, body.reason], [402, 'not confirmed yet'])
  isSealed = true
  assert.equal((await sendDeploy(gateway, wallet, deployBody(), headers)).status, 200)
})

test('a receipt whose block is ahead of the head is not confirmed', async () => {
  const behind = await startRpcProxy(arbitrum.url, ({ method, params }, result) =>
    method === 'eth_getBlockByNumber' && params[0] === 'latest' ? { ...result, number: '0x0' } : result,
  )
  const wallet = await createFundedWallet(chains)

  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }
  const { body } = await sendDeploy(await withEndpoints(behind.url), wallet, deployBody(), headers)

  assert.equal(body.reason, 'not confirmed yet')
})

test('an endpoint that starts to serve another chain is noticed at the next question', async () => {
  let chainId = '0xa4b1'
  const changing = await startRpcProxy(arbitrum.url, ({ method }, result) =>
    method === 'eth_chainId' ? chainId : result,
  )
  const gateway = await withEndpoints(changing.url)
  const wallet = await createFundedWallet(chains)
  assert.equal(
    (await sendDeploy(gateway, wallet, deployBody(), { 'x-payment-tx': await pay(chains, wallet, PRICE) })).status,
    200,
  )

  chainId = '0x1'
  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }

  assert.equal((await sendDeploy(gateway, wallet, deployBody(), headers)).status, 502)
})

test('an endpoint that hangs is given up after some seconds, and the next one answers', async () => {
  const hanging = await startRpcProxy(arbitrum.url, () => new Promise(() => {}))
  const gateway = await withEndpoints(hanging.url, arbitrum.url)
  const wallet = await createFundedWallet(chains)

  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }
  const { status } = await sendDeploy(gateway, wallet, deployBody(), headers)

  assert.equal(status, 200)
})

test('a used hash is refused without asking a chain', async () => {
  const counted = await startRpcProxy(arbitrum.url, (_call, result) => result)
  const gateway = await withEndpoints(counted.url)
  const wallet = await createFundedWallet(chains)
  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }
  assert.equal((await sendDeploy(gateway, wallet, deployBody(), headers)).status, 200)
  const before = counted.calls.length

  assert.equal((await sendDeploy(gateway, wallet, deployBody(), headers)).status, 409)

  assert.equal(counted.calls.length, before)
})

test('keys in the URLs of endpoints reach neither the client nor the log', async () => {
  const lines: string[] = []
  const destination = { write: (line: string) => void lines.push(line) }
  const log = createLog({ name: 'test', level: 'trace', format: 'json', destination })
  const broken = await startRpcProxy(arbitrum.url, () => 'nonsense', '/v2/secret-key')
  const config = { rpcArbitrum: [broken.url, 'http://127.0.0.1:1/v2/secret-key'] }
  const gateway = await createDeployGateway(chains, { database, config, log })
  const wallet = await createFundedWallet(chains)

  const headers = { 'x-payment-tx': await pay(chains, wallet, PRICE) }
  const { status, body } = await sendDeploy(gateway, wallet, deployBody(), headers)

  assert.equal(status, 502)
  assert.ok(lines.some((line) => line.includes('chain endpoint failed')))
  assert.doesNotMatch(JSON.stringify([body, lines]), /secret-key/)
})
