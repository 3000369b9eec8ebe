import assert from 'node:assert/strict'
import { test } from 'node:test'
import {
  createDeployGateway,
  createFundedWallet,
  deployBody,
  PRICE,
  pay,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { startMetricsServer } from './server.ts'

const chains = await startChains()

test('requests, payments and projects are counted, without a wallet or a name in any label', async () => {
  const gateway = await createDeployGateway(chains, { config: { metricsPort: 0 } })
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  await sendDeploy(gateway, wallet, body)
  await sendDeploy(gateway, wallet, body, { 'x-payment-tx': await pay(chains, wallet, PRICE) })
  await gateway.request({ url: '/agent/nothing' })

  const server = await startMetricsServer(gateway.deps)
  const text = await (await fetch(`http://127.0.0.1:${server.port}/metrics`)).text()
  const other = await fetch(`http://127.0.0.1:${server.port}/`)
  await server.close()

  const value = (line: RegExp) => Number(line.exec(text)?.[1])
  assert.equal(
    value(/^warren_gateway_request_seconds_count\{method="POST",route="\/agent\/deploy",status="402"\} (\d+)$/m),
    1,
  )
  assert.equal(
    value(/^warren_gateway_request_seconds_count\{method="POST",route="\/agent\/deploy",status="200"\} (\d+)$/m),
    1,
  )
  assert.equal(value(/^warren_gateway_request_seconds_count\{method="GET",route="none",status="404"\} (\d+)$/m), 1)
  assert.equal(value(/^warren_gateway_payments_total\{transport="transfer",chain="arbitrum"\} (\d+)$/m), 1)
  assert.equal(value(/^warren_gateway_projects\{status="queued"\} (\d+)$/m), 1)
  assert.equal(value(/^warren_gateway_deployments_queued (\d+)$/m), 1)
  assert.doesNotMatch(text.toLowerCase(), new RegExp(wallet.address.toLowerCase()))
  assert.doesNotMatch(text, new RegExp(body.uniqueName))
  assert.equal(other.status, 404)
})
