/** How much of the speed of plain POSTs remains when events are stored, delivered in order and recorded. */
import { randomUUID } from 'node:crypto'
import { Pool, request } from 'undici'
import { connectDatabase } from '../../../control-plane/src/db/connect.ts'
import { signWebhook } from '../../../control-plane/src/webhooks/sign.ts'
import { startChild } from '../child.ts'
import { createAccount } from '../fixtures/accounts.ts'
import { service } from '../fixtures/service.ts'
import { interleave } from '../interleave.ts'
import type { Measurement, Row, Run } from '../row.ts'

/** In one turn: long enough that the number of open requests has reached its maximum. */
const EVENTS = 1_000
/** As many as the deliverer has open to one endpoint. */
const CONNECTIONS = 8
const SECRET = 'whsec_bench'
const BODY = JSON.stringify({
  event: 'sandbox.pause',
  occurredAt: '2026-01-02T03:04:05.006Z',
  data: { id: 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', name: 'web', status: 'paused', status_reason: 'paused by the user' },
})

const EMIT = `select emit_webhook_event($1, 'sandbox.pause', 'sb-' || n, null, json_build_object(
    'id', 'sb-' || n, 'name', 'web', 'status', 'paused', 'status_reason', 'paused by the user'))
  from generate_series(1, $2::int) n`
const PENDING = `select from webhook_deliveries where status = 'pending' limit 1`

export const webhooksRow: Row = {
  name: 'webhooks',
  what: `${EVENTS} events delivered to one endpoint, from their emission, against as many signed POSTs by a plain loop`,
  unit: 'req/s',
  baseline: `a loop of signed POSTs, ${CONNECTIONS} open`,
  target: { ratio: '>=', value: 0.25 },
  measure: measureWebhooks,
  comparison: { whyNot: 'the versions before 0.3 have no webhooks' },
}

async function measureWebhooks(run: Run): Promise<Measurement> {
  const { baseUrl, databaseUrl } = await run.open(service)
  const receiver = await startChild<{ url: string }>('bench/src/fixtures/webhook-receiver-main.ts')
  run.defer(receiver.stop)
  const database = connectDatabase(databaseUrl, { warn() {} }, { max: 2 })
  run.defer(() => database.close())
  const account = await createAccount(database.db, `bench-webhooks-${randomUUID()}`)
  const response = await request(`${baseUrl}/v1/webhook-endpoints`, {
    method: 'POST',
    headers: account.headers,
    body: JSON.stringify({ url: receiver.ready.url }),
  })
  if (response.statusCode !== 200) throw new Error(`creating the endpoint failed: ${await response.body.text()}`)
  const pool = new Pool(receiver.ready.url, { connections: CONNECTIONS, pipelining: 1 })
  run.defer(() => pool.destroy())

  const time = async (work: () => Promise<unknown>): Promise<number> => {
    const startedAt = performance.now()
    const received = receiver.request<{ done: true }>({ count: EVENTS })
    await work()
    await received
    return EVENTS / ((performance.now() - startedAt) / 1000)
  }
  const deliver = () => time(() => database.pool.query(EMIT, [account.id, EVENTS]))
  const post = () => time(() => postAll(pool))
  /** Its results are stored after the last request has arrived. */
  const settle = async () => {
    while ((await database.pool.query(PENDING)).rowCount !== 0) run.signal.throwIfAborted()
  }

  run.report('  warming up')
  for (let round = 0; round < 3; round++) {
    await settle()
    await deliver()
    await post()
  }
  return { ...(await interleave(run, { ours: deliver, baseline: post }, { settle })), ok: 1 }
}

async function postAll(pool: Pool): Promise<void> {
  let left = EVENTS
  const work = async () => {
    while (left-- > 0) {
      const timestamp = Math.floor(Date.now() / 1000)
      const headers = {
        'content-type': 'application/json',
        'x-webhook-timestamp': String(timestamp),
        'x-webhook-signature': signWebhook(SECRET, timestamp, BODY),
      }
      const { body } = await pool.request({ method: 'POST', path: '/', headers, body: BODY })
      await body.dump()
    }
  }
  await Promise.all(Array.from({ length: CONNECTIONS }, work))
}
