import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { createHostedApp } from '../testing/with-host.ts'
import { deleteOldEvents } from './events.ts'

const { deps, user, create, send, get } = await createHostedApp()
const ada = await user()

type Event = { at: string; actor: string; from: string; to: string; reason?: string; duration_ms: number }
const eventsOf = async (id: string, query = '') =>
  (await get(`/v1/sandboxes/${id}/events${query}`, ada.key)).body.data as { data: Event[]; pagination: object }
const waitForStatus = (id: string, status: string) =>
  until(async () => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data.status === status)

async function createWithHistory(): Promise<string> {
  const { id } = (await create(ada)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await waitForStatus(id, 'paused')
  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await waitForStatus(id, 'destroyed')
  return id
}

test('every status change is listed, newest first, with actor, reason and duration', async () => {
  const id = await createWithHistory()

  const { data, pagination } = await eventsOf(id)

  assert.deepEqual(
    data.map(({ from, to, actor, reason }) => [from, to, actor, reason]),
    [
      ['destroying', 'destroyed', 'user', undefined],
      ['paused', 'destroying', 'user', undefined],
      ['pausing', 'paused', 'user', 'paused by the user'],
      ['running', 'pausing', 'user', 'paused by the user'],
      ['creating', 'running', 'user', undefined],
    ],
  )
  assert.deepEqual(pagination, { total: 5, limit: 50, offset: 0, count: 5 })
  for (const [newer, event] of data.slice(1).map((event, index) => [data[index]!, event] as const)) {
    assert.ok(event.duration_ms >= 0)
    // The duration is the time between two events, which are shown in milliseconds.
    const between = Date.parse(newer.at) - Date.parse(event.at)
    assert.ok(Math.abs(newer.duration_ms - between) <= 1, `${newer.duration_ms} ${between}`)
  }
})

test('events are paginated', async () => {
  const id = await createWithHistory()

  const { data, pagination } = await eventsOf(id, '?limit=2&offset=3')

  assert.deepEqual(
    data.map((event) => event.to),
    ['pausing', 'running'],
  )
  assert.deepEqual(pagination, { total: 5, limit: 2, offset: 3, count: 2 })
})

test('events are deleted 30 days after the sandbox has ended', async () => {
  const [old, recent, alive] = [await createWithHistory(), await createWithHistory(), (await create(ada)).body.data.id]
  await sql`update sandbox_events set at = at - interval '31 days'`.execute(deps.db)
  await sql`update sandboxes set status_since = now() - interval '31 days' where id = ${old}`.execute(deps.db)

  await deleteOldEvents.run(deps)

  assert.equal((await eventsOf(old)).data.length, 0)
  assert.equal((await eventsOf(recent)).data.length, 5)
  assert.equal((await eventsOf(alive)).data.length, 1)
})
