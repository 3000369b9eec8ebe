import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { listenOn } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send, get } = await createHostedApp()
const { url } = await listenOn(app)
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const reaches = (id: string, status: string) =>
  until(async () => (await viewOf(id)).status === status, `${id} is ${status}`, 15_000)
const echo = (id: string) => send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'echo', args: ['awake'] })
async function paused(body: object): Promise<string> {
  const { id } = (await create(ada, body)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await reaches(id, 'paused')
  return id
}

test('with auto_resume an exec on a paused sandbox wakes it and runs', async () => {
  const id = await paused({ auto_resume: true })

  const answer = await echo(id)

  assert.deepEqual([answer.status, answer.body.data.result.stdout], [200, 'awake\n'])
  const view = await viewOf(id)
  assert.deepEqual([view.status, view.auto_resume], ['running', true])
  const { data } = (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data
  assert.equal(data[1].reason, 'woken by a request')
})

test('several requests at once wake it once, and files wait as well', async () => {
  const id = await paused({ auto_resume: true })
  const before = host.calls.length

  const answers = await Promise.all([
    echo(id),
    echo(id),
    fetch(`${url}/v1/sandboxes/${id}/files?path=/note`, { method: 'PUT', headers: ada.headers, body: 'hi' }),
    send('POST', `/v1/sandboxes/${id}/exec?stream=true`, ada, { cmd: 'true' }),
  ])
  const file = await send('GET', `/v1/sandboxes/${id}/files?path=/note`, ada)

  assert.deepEqual(
    answers.map((answer) => answer.status),
    [200, 200, 200, 200],
  )
  assert.equal(file.body, 'hi')
  assert.equal(host.calls.slice(before).filter((call) => call.endsWith('/resume')).length, 1)
})

test('one that is just being paused is waited for, then woken', async () => {
  const { id } = (await create(ada, { auto_resume: true })).body.data
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => gate.promise }
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)

  const answered = echo(id)
  gate.resolve()

  assert.equal((await answered).status, 200)
})

test('without it, or with it switched off again, a paused sandbox is 404 as ever', async () => {
  const plain = await paused({})
  const off = await paused({ auto_resume: true })
  const patched = await send('PATCH', `/v1/sandboxes/${off}`, ada, { auto_resume: false })

  for (const id of [plain, off]) {
    const answer = await echo(id)
    assert.deepEqual(
      [answer.status, answer.body.data],
      [404, { message: 'sandbox is paused, expected running', code: 'sandbox_not_running' }],
    )
  }
  assert.equal('auto_resume' in patched.body.data, false)
})

test('what a resume is refused for is the answer, and a bad request wakes nobody', async () => {
  const id = await paused({ auto_resume: true })
  const bad = await send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'true', env: { UNDECLARED: '1' } })
  const still = (await viewOf(id)).status
  await deps.db.updateTable('users').set({ credit_micro: 0 }).where('id', '=', ada.id).execute()

  const broke = await echo(id)
  await deps.db.updateTable('users').set({ credit_micro: 1e9 }).where('id', '=', ada.id).execute()

  assert.deepEqual([bad.status, still], [400, 'paused'])
  assert.deepEqual([broke.status, broke.body.data.code], [402, 'insufficient_credit'])
})

test('one that cannot wake says in which state it is', async () => {
  const id = await paused({ auto_resume: true })
  host.hooks = {
    beforeResume: () => {
      throw new FakeHostFailure('snapshot_missing', 'gone')
    },
  }

  const answer = await echo(id)

  assert.deepEqual([answer.status, answer.body.data.message], [404, 'sandbox is error, expected running'])
})
