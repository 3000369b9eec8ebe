import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp()
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const statusOf = async (id: string) => (await viewOf(id)).status
const reaches = (id: string, status: string) =>
  until(async () => (await statusOf(id)) === status, `${id} is ${status}`, 30_000)
const eventsOf = async (id: string) => (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data.data
const kindsOf = async (id: string) => {
  const rows = await deps.db
    .selectFrom('usage_intervals')
    .select(['kind', 'ended_at'])
    .where('sandbox_id', '=', id)
    .orderBy('id')
    .execute()
  return rows.map((row) => `${row.kind}${row.ended_at === null ? ' open' : ''}`)
}
const pause = (id: string) => send('POST', `/v1/sandboxes/${id}/pause`, ada)
async function running(body: object = {}): Promise<string> {
  const { status, body: answer } = await create(ada, body)
  assert.equal(status, 200, JSON.stringify(answer))
  return answer.data.id
}

test('a pause is accepted at once, and paused when the host has saved everything', async () => {
  const id = await running()
  const saved = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => saved.promise }

  const accepted = await pause(id)
  const meanwhile = await viewOf(id)
  saved.resolve()
  await reaches(id, 'paused')

  const view = await viewOf(id)
  assert.deepEqual([accepted.status, accepted.headers['x-poll-after']], [202, '1'])
  assert.deepEqual([accepted.body.data.status, accepted.body.data.id], ['pausing', id])
  assert.equal(meanwhile.status, 'pausing')
  assert.equal(view.ip, accepted.body.data.ip, 'the address is kept')
  assert.ok(view.paused_at)
  assert.equal(view.status_reason, 'paused by the user')
  assert.equal(host.vms.get(id)!.state, 'paused')
})

test('what is paused holds no memory, and pays for memory and disk but not for processors', async () => {
  const id = await running()

  await pause(id)
  await reaches(id, 'paused')

  assert.deepEqual(await kindsOf(id), ['running', 'paused open'])
  const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  assert.deepEqual([row.reserved_mib, row.host_id, row.generation], [0, host.id, 1])
  await assertNothingLeft()
})

test('a body is not needed, and none of its sloppy forms is refused', async () => {
  for (const payload of ['', '{}', 'null', ' ', '{"unknown":1}', '[]']) {
    const id = await running()
    const url = `/v1/sandboxes/${id}/pause`
    const headers = { ...ada.headers, 'content-type': 'text/plain' }
    assert.equal((await app.inject({ method: 'POST', url, headers, payload })).statusCode, 202, payload)
    await reaches(id, 'paused')
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
  }
})

test('a pause of what is not running is 409 and says so', async () => {
  const id = await running()
  await pause(id)
  await reaches(id, 'paused')

  const again = await pause(id)

  assert.deepEqual(
    [again.status, again.body.data],
    [409, { message: 'sandbox is paused, expected running', code: 'wrong_state' }],
  )
})

test('of two pauses at once one is accepted', async () => {
  const id = await running()

  const answers = await Promise.all([pause(id), pause(id)])

  assert.deepEqual(answers.map((answer) => answer.status).sort(), [202, 409])
  await reaches(id, 'paused')
})

test("someone else's sandbox is not found", async () => {
  const id = await running()
  const bob = await user()

  for (const verb of ['pause', 'resume', 'fork']) {
    assert.equal((await send('POST', `/v1/sandboxes/${id}/${verb}`, bob)).status, 404, verb)
  }
  assert.equal((await send('GET', `/v1/sandboxes/${id}/events`, bob)).status, 404)
})

test('a pause that the host cannot do leaves the sandbox running with the reason, and it can be paused again', async () => {
  const id = await running()
  host.hooks = {
    beforePause: () => {
      throw new FakeHostFailure('pause_failed', 'no space left for the saved state')
    },
  }

  await pause(id)
  await until(async () => (await eventsOf(id)).length === 3)

  const view = await viewOf(id)
  assert.equal(view.status, 'running')
  assert.equal(view.status_reason, 'could not be paused: no space left for the saved state')
  assert.deepEqual(await kindsOf(id), ['running open'])
  const [failed, asked] = await eventsOf(id)
  assert.deepEqual(
    [failed.from, failed.to, failed.actor, failed.reason],
    ['pausing', 'running', 'user', 'could not be paused: no space left for the saved state'],
  )
  assert.deepEqual([asked.from, asked.to, asked.reason], ['running', 'pausing', 'paused by the user'])
  host.hooks = {}
  assert.equal((await pause(id)).status, 202)
  await reaches(id, 'paused')
})

test('a host that fails in its own words does not tell them to the owner', async () => {
  const id = await running()
  host.hooks = {
    beforePause: () => {
      throw new Error('/srv/secret broke')
    },
  }

  await pause(id)
  await until(async () => (await viewOf(id)).status_reason !== undefined && (await statusOf(id)) === 'running')

  assert.equal((await viewOf(id)).status_reason, 'could not be paused: the host failed')
})

test('a host that dies in the middle is asked again when it is back', async () => {
  for (const hook of ['beforePause', 'afterPause'] as const) {
    const id = await running()
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return new Promise(() => {})
      },
    }
    await pause(id)
    await until(() => reached)

    await host.stop()
    host.hooks = {}
    const during = await statusOf(id)
    await host.start()

    assert.equal(during, 'pausing')
    await reaches(id, 'paused')
    await assertNothingLeft()
  }
})

test('a VM that dies while it is paused is an error that can be resumed', async () => {
  const id = await running()
  host.hooks = {
    beforePause: () => {
      host.killVm(id, 'QEMU ended by SIGSEGV')
    },
  }

  await pause(id)
  await reaches(id, 'error')

  assert.equal((await viewOf(id)).status_reason, 'the VM ended: QEMU ended by SIGSEGV')
  assert.deepEqual(await kindsOf(id), ['running', 'error open'])
  await assertNothingLeft()
  assert.equal((await send('POST', `/v1/sandboxes/${id}/resume`, ada)).status, 202)
  await reaches(id, 'running')
  await assertNothingLeft()
})

test('a delete wins over a pause under way', async () => {
  const id = await running()
  const saved = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => saved.promise }
  await pause(id)

  const answer = await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await reaches(id, 'destroyed')
  saved.resolve()

  assert.equal(answer.body.data.status, 'destroying')
  assert.equal(host.vms.has(id), false)
  assert.deepEqual(await kindsOf(id), ['running'])
  await assertNothingLeft()
})

test('a delete ends what is paused, and its intervals', async () => {
  const id = await running()
  await pause(id)
  await reaches(id, 'paused')

  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await reaches(id, 'destroyed')

  assert.deepEqual(await kindsOf(id), ['running', 'paused'])
  await assertNothingLeft()
})
