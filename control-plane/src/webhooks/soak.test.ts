/**
 * Many events to twenty endpoints of a real receiver process, some of which are slow, refuse, do not respond, redirect, die
 * midway or do not exist, while the delivering process is killed five times. With WARREN_TEST_SOAK: 10,000 events.
 *
 * The delivering process has a clock that runs faster, so that retries after minutes follow within the test.
 */
import assert from 'node:assert/strict'
import type { ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { WEBHOOK_RETRY_DELAYS_MS } from '@warren/protocol'
import { sql } from 'kysely'
import { createTestApp } from '../testing/app.ts'
import type { ReceiverReport } from '../testing/receiver-process.ts'
import { startTestProcess } from '../testing/test-process.ts'
import { deleteOldDeliveries } from './delete-old.ts'

const SOAK = process.env.WARREN_TEST_SOAK !== undefined
const EVENTS = SOAK ? 10_000 : 200
const KILLS = 5
const CLOCK_SCALE = SOAK ? 60 : 200
const LIMIT_MS = scaleLimit(SOAK ? 900_000 : 120_000)
const KINDS = [
  ...Array<string>(11).fill('healthy'),
  ...Array<string>(2).fill('slow'),
  ...Array<string>(2).fill('dying'),
  ...Array<string>(2).fill('refusing'),
  'silent',
  'redirect',
  'absent',
]
/** The others never acknowledge. */
const WORKING = new Set(['healthy', 'slow', 'dying'])

const { app, deps, user } = await createTestApp({ config: { localUser: true } })

const startProcess = (file: string, env: NodeJS.ProcessEnv = {}): ChildProcess =>
  startTestProcess(deps, new URL(`../testing/${file}`, import.meta.url).pathname, env).child

test('every event of a working endpoint arrives, rightly signed, through five kills', {
  timeout: LIMIT_MS,
}, async () => {
  const receiver = startProcess('receiver-process.ts')
  const [{ port }] = (await once(receiver, 'message')) as [{ port: number }]
  const getReport = async (): Promise<ReceiverReport> => {
    receiver.send({ report: true })
    return ((await once(receiver, 'message')) as [{ report: ReceiverReport }])[0].report
  }
  const owner = await user({ plan: 'local' })
  const endpoints: { kind: string; path: string; id: string; secret: string }[] = []
  for (const [n, kind] of KINDS.entries()) {
    const path = `/${kind}/${n}`
    // Nothing listens on port 1.
    const url = kind === 'absent' ? 'http://127.0.0.1:1/' : `http://127.0.0.1:${port}${path}`
    const options = { method: 'POST' as const, url: '/v1/webhook-endpoints', headers: owner.headers, payload: { url } }
    endpoints.push({ kind, path, ...(await app.inject(options)).json().data })
  }
  receiver.send({ secrets: endpoints.map(({ path, secret }) => [path, secret]) })

  const clockStart = Date.now()
  const env = {
    TEST_CLOCK_START: String(clockStart),
    TEST_CLOCK_SCALE: String(CLOCK_SCALE),
    TEST_TIMEOUT_MS: '1000',
  }
  const startDelivering = async () => {
    const child = startProcess('deliverer-process.ts', env)
    await once(child, 'message')
    return child
  }
  const emitting = emitEvents(owner.id)
  let deliverer = await startDelivering()
  for (let kill = 0; kill < KILLS; kill++) {
    const before = await countDelivered()
    await until(async () => (await countDelivered()) > before, 'deliveries before the next kill', LIMIT_MS)
    await passTime(Math.random() * 1_000, 'the moment of the kill is random')
    const exited = once(deliverer, 'exit')
    deliverer.kill('SIGKILL')
    await exited
    deliverer = await startDelivering()
  }
  await emitting
  const working = endpoints.filter(({ kind }) => WORKING.has(kind)).map(({ id }) => id)
  const isDone = async () =>
    (
      await sql`select from webhook_deliveries where endpoint_id = any (${working}::uuid[]) and status <> 'delivered'
        limit 1`.execute(deps.db)
    ).rows.length === 0
  await until(isDone, 'all deliveries to working endpoints', LIMIT_MS)

  const report = await getReport()
  assert.equal(report.wrongSignatures, 0)
  const { rows } = await sql<{
    id: string
    endpoint_id: string
  }>`select id, endpoint_id from webhook_deliveries`.execute(deps.db)
  for (const { id, kind, path } of endpoints) {
    const expected = rows.filter((row) => row.endpoint_id === id).map((row) => row.id)
    assert.equal(expected.length, EVENTS, path)
    const { acknowledged, other } = report.endpoints[path] ?? { acknowledged: {}, other: {} }
    if (WORKING.has(kind)) {
      assert.deepEqual(
        expected.filter((delivery) => !(delivery in acknowledged)),
        [],
        `${path} has not received everything`,
      )
    } else assert.deepEqual(acknowledged, {}, path)
    for (const times of Object.values(other)) assertRetryTimes(times, kind)
  }

  deliverer.kill('SIGKILL')
  const later = Date.now() + 31 * 60_000 + (Date.now() - clockStart) * CLOCK_SCALE
  deps.now = () => new Date(later)
  await deleteOldDeliveries.run(deps)
  const left = await sql<{ n: number }>`select count(*) as n from webhook_deliveries where status <> 'pending'`.execute(
    deps.db,
  )
  assert.equal(left.rows[0]!.n, 0, 'completed deliveries are removed after 30 minutes')
})

async function emitEvents(userId: string): Promise<void> {
  const batch = 50
  for (let from = 0; from < EVENTS; from += batch) {
    await sql`select emit_webhook_event(${userId}, 'sandbox.patch', 'sb-' || (n % 37), null,
        json_build_object('id', 'sb-' || (n % 37), 'name', 'x', 'n', n))
      from generate_series(${from}::int, ${from + batch - 1}::int) n`.execute(deps.db)
    await passTime(SOAK ? 100 : 500, 'events are spread over the kills')
  }
}

async function countDelivered(): Promise<number> {
  const { rows } = await sql<{
    n: number
  }>`select count(*) as n from webhook_deliveries where status = 'delivered'`.execute(deps.db)
  return rows[0]!.n
}

/**
 * A retry never comes before its delay. It may come later, by the poll and the queue of the endpoint. An attempt that a kill cut
 * off is repeated at once, so a single short gap per kill is possible. Timestamps are in whole seconds.
 */
function assertRetryTimes(times: number[], kind: string): void {
  const gaps = times.slice(1).map((time, index) => time - times[index]!)
  let attempt = 0
  let repeated = 0
  for (const gap of gaps) {
    if (gap >= WEBHOOK_RETRY_DELAYS_MS[attempt]! / 1000 - 1) attempt++
    else repeated++
  }
  assert.ok(repeated <= KILLS, `${kind}: attempts after ${gaps.join(', ')} s`)
}
