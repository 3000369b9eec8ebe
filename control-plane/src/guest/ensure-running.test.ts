import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { listenOn } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { ensureRunning } from './ensure-running.ts'
import { checkRunning, checkRunningOrConflict } from './with-guest.ts'

const { app, deps, host, user, create, send, get } = await createHostedApp()
const { url } = await listenOn(app)
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const waitForStatus = (id: string, status: string) =>
  until(async () => (await viewOf(id)).status === status, `${id} is ${status}`, 15_000)
const echo = (id: string) => send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'echo', args: ['hello'] })
async function createPaused(body: object): Promise<string> {
  const { id } = (await create(ada, body)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await waitForStatus(id, 'paused')
  return id
}

test('with auto_resume, an exec on a paused sandbox resumes it and runs', async () => {
  const id = await createPaused({ auto_resume: true })

  const response = await echo(id)

  assert.deepEqual([response.status, response.body.data.result.stdout], [200, 'hello\n'])
  const view = await viewOf(id)
  assert.deepEqual([view.status, view.auto_resume], ['running', true])
  const { data } = (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data
  assert.equal(data[1].reason, 'resumed by a request')
})

test('several concurrent requests resume the sandbox once, file transfers included', async () => {
  const id = await createPaused({ auto_resume: true })
  const before = host.calls.length

  const responses = await Promise.all([
    echo(id),
    echo(id),
    fetch(`${url}/v1/sandboxes/${id}/files?path=/note`, { method: 'PUT', headers: ada.headers, body: 'hi' }),
    send('POST', `/v1/sandboxes/${id}/exec?stream=true`, ada, { cmd: 'true' }),
  ])
  const file = await send('GET', `/v1/sandboxes/${id}/files?path=/note`, ada)

  assert.deepEqual(
    responses.map((response) => response.status),
    [200, 200, 200, 200],
  )
  assert.equal(file.body, 'hi')
  assert.equal(host.calls.slice(before).filter((call) => call.endsWith('/resume')).length, 1)
})

test('a request during a pause waits for its end and then resumes the sandbox', async () => {
  const { id } = (await create(ada, { auto_resume: true })).body.data
  const pauseHeld = Promise.withResolvers<void>()
  host.hooks = { beforePause: () => pauseHeld.promise }
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)

  const pending = echo(id)
  pauseHeld.resolve()

  assert.equal((await pending).status, 200)
})

test('a request right after a resume, a fork or a create waits until the sandbox runs', async () => {
  const resumed = await createPaused({})
  const source = await createPaused({})
  const held = Promise.withResolvers<void>()
  host.hooks = { beforeResume: () => held.promise, beforeCreate: () => held.promise }
  const created = create(ada)
  const creating = await until(
    async () => (await get('/v1/sandboxes?status=creating', ada.key)).body.data.data[0]?.id,
    'the sandbox is creating',
    15_000,
  )
  await send('POST', `/v1/sandboxes/${resumed}/resume`, ada)
  const { id: forked } = (await send('POST', `/v1/sandboxes/${source}/fork`, ada, {})).body.data
  const ids = [resumed, creating, forked]
  const statuses = await Promise.all(ids.map(async (id) => (await viewOf(id)).status))

  const pending = [
    ...ids.map((id) => echo(id)),
    send('POST', `/v1/sandboxes/${resumed}/processes`, ada, { cmd: 'true' }),
    fetch(`${url}/v1/sandboxes/${resumed}/files?path=/note`, { method: 'PUT', headers: ada.headers, body: 'hi' }),
  ]
  held.resolve()

  assert.deepEqual(statuses, ['resuming', 'creating', 'forking'])
  const responses = await Promise.all(pending)
  assert.deepEqual(
    responses.map((response) => response.status),
    [200, 200, 200, 200, 200],
  )
  assert.equal((await created).status, 200)
})

test('a request that has waited too long fails with the status of the sandbox', async () => {
  const limitsMs = { start: 50, autoResume: 50 }
  const signal = new AbortController().signal
  for (const status of ['creating', 'resuming', 'forking'] as const) {
    const row = await insertSandbox(deps.db, ada.id, status, { owner: deps.processId })
    const message = `sandbox is ${status}, expected running`
    await assert.rejects(ensureRunning(deps, row, signal, checkRunning, limitsMs), { code: 'sandbox_not_running' })
    await assert.rejects(ensureRunning(deps, row, signal, checkRunningOrConflict, limitsMs), {
      code: 'wrong_state',
      message,
    })
    const automatic = { ...row, auto_resume: true }
    await deps.db.updateTable('sandboxes').set({ auto_resume: true }).where('id', '=', row.id).execute()
    await assert.rejects(ensureRunning(deps, automatic, signal, checkRunning, limitsMs), /did not resume in time/)
  }
})

test('without auto_resume, or after it was switched off, a request to a paused sandbox is 404', async () => {
  const plain = await createPaused({})
  const off = await createPaused({ auto_resume: true })
  const patched = await send('PATCH', `/v1/sandboxes/${off}`, ada, { auto_resume: false })

  for (const id of [plain, off]) {
    const response = await echo(id)
    assert.deepEqual(
      [response.status, response.body.data],
      [404, { message: 'sandbox is paused, expected running', code: 'sandbox_not_running' }],
    )
  }
  assert.equal('auto_resume' in patched.body.data, false)
})

test('a rejected resume fails the request, and an invalid request does not resume the sandbox', async () => {
  const id = await createPaused({ auto_resume: true })
  const bad = await send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'true', env: { UNDECLARED: '1' } })
  const statusAfterBad = (await viewOf(id)).status
  await setBalance(deps.db, ada.id, 0)

  const unpaid = await echo(id)
  await setBalance(deps.db, ada.id, 1e9)

  assert.deepEqual([bad.status, statusAfterBad], [400, 'paused'])
  assert.deepEqual([unpaid.status, unpaid.body.data.code], [402, 'insufficient_credit'])
})

test('when the resume fails, the error names the status of the sandbox', async () => {
  const id = await createPaused({ auto_resume: true })
  host.hooks = {
    beforeResume: () => {
      throw new FakeHostFailure('snapshot_missing', 'gone')
    },
  }

  const response = await echo(id)

  assert.deepEqual([response.status, response.body.data.message], [404, 'sandbox is error, expected running'])
})
