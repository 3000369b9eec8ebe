/** Eight clients send random requests to one sandbox and its children. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createHostedApp } from '../testing/with-host.ts'

const CLIENTS = 8
const ROUNDS = 25

const { deps, user, create, send, get, assertNothingLeft } = await createHostedApp({ host: { memMib: 32_768 } })
const ada = await user({ plan: 'local' })

/** The statuses that each request may return. */
const ALLOWED = { pause: [202, 409], resume: [202, 409], fork: [202, 409, 503], exec: [200, 404, 502], DELETE: [200] }
type Verb = keyof typeof ALLOWED

const statuses = async () => {
  const rows = await deps.db.selectFrom('sandboxes').select(['id', 'status']).execute()
  return new Map(rows.map((row) => [row.id, row.status]))
}
const isSettled = (status: string) => ['running', 'paused', 'error', 'destroyed', 'failed'].includes(status)

async function sendAllowed(id: string, verb: Verb): Promise<void> {
  const response =
    verb === 'DELETE'
      ? await send('DELETE', `/v1/sandboxes/${id}`, ada)
      : await send('POST', `/v1/sandboxes/${id}/${verb}`, ada, verb === 'exec' ? { cmd: 'true' } : {})
  assert.ok(ALLOWED[verb].includes(response.status), `${verb}: ${response.status} ${JSON.stringify(response.body)}`)
}

test('random pauses, resumes, forks and execs get only allowed responses and end consistently', async () => {
  const { id } = (await create(ada)).body.data
  const verbs: Verb[] = ['pause', 'resume', 'pause', 'resume', 'fork', 'exec']

  await Promise.all(
    Array.from({ length: CLIENTS }, async () => {
      for (let round = 0; round < ROUNDS; round++)
        await sendAllowed(id, verbs[Math.floor(Math.random() * verbs.length)]!)
    }),
  )
  await until(async () => [...(await statuses()).values()].every(isSettled), 'every sandbox has settled', 30_000)

  await assertNothingLeft()
  await assertIntervals()
})

test('with random deletes among them, all sandboxes end and nothing leaks', async () => {
  const living = [...(await statuses())].filter(([, status]) => !['destroyed', 'failed'].includes(status))
  const verbs: Verb[] = ['pause', 'resume', 'fork', 'DELETE']

  await Promise.all(
    Array.from({ length: CLIENTS }, async () => {
      for (let round = 0; round < ROUNDS; round++) {
        const [id] = living[Math.floor(Math.random() * living.length)]!
        await sendAllowed(id, verbs[Math.floor(Math.random() * verbs.length)]!)
      }
    }),
  )
  for (const id of (await statuses()).keys()) await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await until(
    async () => [...(await statuses()).values()].every((status) => status === 'destroyed'),
    'all are destroyed',
    30_000,
  )

  await assertNothingLeft()
  await assertIntervals()
})

/** Usage intervals have neither gaps nor overlaps, and match the events. */
async function assertIntervals(): Promise<void> {
  for (const id of (await statuses()).keys()) {
    const intervals = await deps.db
      .selectFrom('usage_intervals')
      .selectAll()
      .where('sandbox_id', '=', id)
      .orderBy('id')
      .execute()
    for (const [index, interval] of intervals.slice(1).entries()) {
      assert.deepEqual(intervals[index]!.ended_at, interval.started_at, id)
    }
    const { data } = (await get(`/v1/sandboxes/${id}/events?limit=500`, ada.key)).body.data
    for (const [index, event] of data.slice(1).entries()) assert.equal(event.to, data[index].from, id)
  }
}
