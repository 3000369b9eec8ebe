/** From usage to the receiver: low credit, and the pause of an account without credit. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { chargeUsage } from '../credit/charge.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { JOBS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { createClockedApp } from '../testing/credit-clock.ts'
import { setBalance } from '../testing/set-balance.ts'
import { startTestReceiver } from '../testing/webhook-receiver.ts'
import { startDeliverer } from './deliverer.ts'

const { deps, user, create, send, advance } = await createClockedApp({
  startWorker: false,
  config: { webhookPrivateCidrs: ['127.0.0.0/8'] },
})
const worker = await startWorker(deps, { jobs: JOBS, sweeps: [] })
after(() => worker.stop())

test('low credit and the pause without credit are delivered, each once', async () => {
  const ada = await user()
  const receiver = await startTestReceiver()
  const { secret } = (await send('POST', '/v1/webhook-endpoints', ada, { url: receiver.url })).body.data
  receiver.secret = secret
  const { id, name } = (await create(ada)).body.data
  const pass = async (balanceMicro: number) => {
    await setBalance(deps.db, ada.id, balanceMicro)
    await advance(60)
    await writeHeartbeat(deps, [])
    await chargeUsage.run(deps)
  }
  const deliverer = startDeliverer(deps)
  after(() => deliverer.stop())

  await pass(50_000_000)
  await pass(40_000_000)
  await pass(1)
  await until(() => receiver.received.some(({ event }) => event.event === 'sandbox.pause'))

  const events = receiver.received.map(({ event }) => event)
  assert.deepEqual(
    events.map(({ event }) => event),
    ['sandbox.create', 'account.credit.low', 'sandbox.pause'],
  )
  const low = events[1]!.data
  assert.deepEqual([low.id, typeof low.name], [ada.id, 'string'])
  assert.ok(Number(low.balance_micro) < 50_000_000 && Number(low.balance_micro) > 40_000_000)
  assert.deepEqual(events[2]!.data, {
    id,
    name,
    status: 'paused',
    status_reason: 'credit: the account has no credit left',
  })
})
