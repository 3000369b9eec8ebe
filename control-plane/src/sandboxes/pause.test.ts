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
const waitForStatus = (id: string, status: string) =>
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
async function createRunning(body: object = {}): Promise<string> {
  const { status, body: response } = await create(ada, body)
  assert.equal(status, 200, JSON.stringify(response))
  return response.data.id
}

test('a pause is accepted at once, and the sandbox is paused when the host has saved everything', async () => {
  const id = await createRunning()
  const saved = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => saved.promise }

  const accepted = await pause(id)
  const meanwhile = await viewOf(id)
  saved.resolve()
  await waitForStatus(id, 'paused')

  const view = await viewOf(id)
  assert.deepEqual([accepted.status, accepted.headers['x-poll-after']], [202, '1'])
  assert.deepEqual([accepted.body.data.status, accepted.body.data.id], ['pausing', id])
  assert.equal(meanwhile.status, 'pausing')
  assert.equal(view.ip, accepted.body.data.ip, 'the address is kept')
  assert.ok(view.paused_at)
  assert.equal(view.status_reason, 'paused by the user')
  assert.equal(host.vms.get(id)!.state, 'paused')
})

test('a paused sandbox reserves no memory, and is charged for memory and disk but not for vCPUs', async () => {
  const id = await createRunning()

  await pause(id)
  await waitForStatus(id, 'paused')

  assert.deepEqual(await kindsOf(id), ['running', 'paused open'])
  const row = await deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()
  assert.deepEqual([row.reserved_mib, row.host_id, row.generation], [0, host.id, 1])
  await assertNothingLeft()
})

test('a request body is optional, and every empty form of it is accepted', async () => {
  for (const payload of ['', '{}', 'null', ' ', '{"unknown":1}', '[]']) {
    const id = await createRunning()
    const url = `/v1/sandboxes/${id}/pause`
    const headers = { ...ada.headers, 'content-type': 'text/plain' }
    assert.equal((await app.inject({ method: 'POST', url, headers, payload })).statusCode, 202, payload)
    await waitForStatus(id, 'paused')
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
  }
})

test('a pause of a sandbox that is not running is 409 with its status', async () => {
  const id = await createRunning()
  await pause(id)
  await waitForStatus(id, 'paused')

  const again = await pause(id)

  assert.deepEqual(
    [again.status, again.body.data],
    [409, { message: 'sandbox is paused, expected running', code: 'wrong_state' }],
  )
})

test('of two concurrent pauses one is accepted', async () => {
  const id = await createRunning()

  const responses = await Promise.all([pause(id), pause(id)])

  assert.deepEqual(responses.map((response) => response.status).sort(), [202, 409])
  await waitForStatus(id, 'paused')
})

test("someone else's sandbox is not found", async () => {
  const id = await createRunning()
  const bob = await user()

  for (const verb of ['pause', 'resume', 'fork']) {
    assert.equal((await send('POST', `/v1/sandboxes/${id}/${verb}`, bob)).status, 404, verb)
  }
  assert.equal((await send('GET', `/v1/sandboxes/${id}/events`, bob)).status, 404)
})

test('a pause that fails on the host leaves the sandbox running with the reason, and can be repeated', async () => {
  const id = await createRunning()
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
  await waitForStatus(id, 'paused')
})

test('internal error messages of a host are not shown to the user', async () => {
  const id = await createRunning()
  host.hooks = {
    beforePause: () => {
      throw new Error('/srv/secret broke')
    },
  }

  await pause(id)
  await until(async () => (await viewOf(id)).status_reason !== undefined && (await statusOf(id)) === 'running')

  assert.equal((await viewOf(id)).status_reason, 'could not be paused: the host failed')
})

test('a host that dies during the pause is asked again when it is back', async () => {
  for (const hook of ['beforePause', 'afterPause'] as const) {
    const id = await createRunning()
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
    await waitForStatus(id, 'paused')
    await assertNothingLeft()
  }
})

test('a VM that dies during the pause leaves the sandbox in error, and it can be resumed', async () => {
  const id = await createRunning()
  host.hooks = {
    beforePause: () => {
      host.killVm(id, 'QEMU ended by SIGSEGV')
    },
  }

  await pause(id)
  await waitForStatus(id, 'error')

  assert.equal((await viewOf(id)).status_reason, 'the VM ended: QEMU ended by SIGSEGV')
  assert.deepEqual(await kindsOf(id), ['running', 'error open'])
  await assertNothingLeft()
  assert.equal((await send('POST', `/v1/sandboxes/${id}/resume`, ada)).status, 202)
  await waitForStatus(id, 'running')
  await assertNothingLeft()
})

test('a delete wins over a pause in progress', async () => {
  const id = await createRunning()
  const saved = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => saved.promise }
  await pause(id)

  const response = await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await waitForStatus(id, 'destroyed')
  saved.resolve()

  assert.equal(response.body.data.status, 'destroying')
  assert.equal(host.vms.has(id), false)
  assert.deepEqual(await kindsOf(id), ['running'])
  await assertNothingLeft()
})

test('deleting a paused sandbox ends its usage interval', async () => {
  const id = await createRunning()
  await pause(id)
  await waitForStatus(id, 'paused')

  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await waitForStatus(id, 'destroyed')

  assert.deepEqual(await kindsOf(id), ['running', 'paused'])
  await assertNothingLeft()
})
