import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmForkBody, HostVmResumeBody } from '@warren/protocol'
import type { TestResponse, TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'

const hosted = await createHostedApp({ host: { memMib: 8192 } })
const { app, deps, host, user, create, send, get, assertNothingLeft } = hosted
const ada = await user({ plan: 'enterprise' })

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string, who = ada) => (await get(`/v1/sandboxes/${id}`, who.key)).body.data
const waitForStatus = (id: string, status: string, who = ada) =>
  until(async () => (await viewOf(id, who)).status === status, `${id} is ${status}`, 15_000)
const fork = (id: string, body: object = {}, who = ada) => send('POST', `/v1/sandboxes/${id}/fork`, who, body)
const childrenOf = (id: string) =>
  deps.db.selectFrom('sandboxes').selectAll().where('forked_from', '=', id).orderBy('id').execute()

async function createPaused(body: object = {}, who: TestUser = ada): Promise<string> {
  const { id } = (await create(who, body)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, who)
  await waitForStatus(id, 'paused', who)
  return id
}
async function remove(...ids: string[]): Promise<void> {
  for (const id of ids) await send('DELETE', `/v1/sandboxes/${id}`, ada)
  for (const id of ids) await waitForStatus(id, 'destroyed')
}

test('a fork is a new sandbox that continues from the saved state of its source', async () => {
  const { id } = (await create(ada, { envs: { TOKEN: 'x' }, egress: ['example.com'] })).body.data
  await send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'sh', args: ['-c', 'echo kept > file'] })
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await waitForStatus(id, 'paused')

  const accepted = await fork(id)
  const child = accepted.body.data
  await waitForStatus(child.id, 'running')

  assert.deepEqual([accepted.status, accepted.headers['x-poll-after']], [202, '1'])
  assert.deepEqual([child.status, child.forked_from, 'ip' in child], ['forking', id, false])
  assert.notEqual(child.name, (await viewOf(id)).name)
  const view = await viewOf(child.id)
  assert.notEqual(view.ip, (await viewOf(id)).ip)
  assert.deepEqual([view.envs, view.egress, view.shape], [['TOKEN'], ['example.com'], 's-1vcpu-256mb'])
  const run = await send('POST', `/v1/sandboxes/${child.id}/exec`, ada, {
    cmd: 'sh',
    args: ['-c', 'cat file; echo $TOKEN'],
  })
  assert.equal(run.body.data.result.stdout, 'kept\nx\n')
  assert.equal((await viewOf(id)).status, 'paused', 'the source stays as it is')
  await assertNothingLeft()
  await remove(id, child.id)
})

test('given fields replace those of the source, others are inherited', async () => {
  const key = 'ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ0dpDNbeJWeBFFcvxcTtO1ymElF1i+JeVwaUCLWkLvR a@b'
  const id = await createPaused({
    envs: { OLD: '1' },
    egress: ['example.com'],
    ingress_enabled: true,
    auto_pause_after_seconds: 600,
    auto_resume: true,
    ssh_pubkeys: [key],
  })
  const asked: HostVmResumeBody[] = []
  host.hooks = { beforeResume: (_, body) => void asked.push(body) }

  const same = (await fork(id, { envs: {}, egress: undefined })).body.data
  const other = (await fork(id, { envs: { NEW: '2' }, egress: null, ingress_enabled: false, ssh_pubkeys: [] })).body
    .data
  await waitForStatus(same.id, 'running')
  await waitForStatus(other.id, 'running')

  assert.deepEqual(
    [same.envs, same.egress, same.ingress_enabled, same.auto_pause_after_seconds, same.ssh_pubkeys.length],
    [['OLD'], ['example.com'], true, 600, 1],
  )
  assert.equal(same.auto_resume, true)
  assert.deepEqual([other.envs, other.egress, other.ingress_enabled, other.ssh_pubkeys], [['NEW'], [], false, []])
  assert.deepEqual(
    asked.map((body) => body.envs),
    [{ OLD: '1' }, { NEW: '2' }],
  )
  await remove(id, same.id, other.id)
})

test('a fork with bandwidth_quota_bytes is 400, even with 0', async () => {
  const id = await createPaused()

  for (const bandwidth_quota_bytes of [0, 5, 'x']) {
    const response = await fork(id, { bandwidth_quota_bytes })
    assert.deepEqual([response.status, Object.keys(response.body.data)], [400, ['bandwidth_quota_bytes', 'code']])
  }
  assert.equal((await fork(id, { count: 17 })).status, 400)
  assert.equal((await fork(id, { count: 0 })).status, 400)
  await remove(id)
})

test('only a paused sandbox can be forked; with live a running one too, and it keeps running', async () => {
  const { id } = (await create(ada)).body.data

  const refused = await fork(id)
  const live = await fork(id, { live: true })
  await waitForStatus(live.body.data.id, 'running')

  assert.deepEqual([refused.status, refused.body.data.message], [409, 'sandbox is running, expected paused'])
  assert.equal(live.status, 202)
  assert.equal((await viewOf(id)).status, 'running')
  await assertNothingLeft()
  await remove(id, live.body.data.id)
})

test('with start_paused the child is paused at once, holds no memory, and can be resumed', async () => {
  const id = await createPaused()

  const child = (await fork(id, { start_paused: true })).body.data
  const at = await viewOf(child.id)
  await assertNothingLeft()
  await send('POST', `/v1/sandboxes/${child.id}/resume`, ada)
  await waitForStatus(child.id, 'running')

  assert.deepEqual([child.status, at.status, typeof at.ip, 'running_at' in at], ['forking', 'paused', 'string', false])
  assert.ok((await viewOf(child.id)).running_at)
  await assertNothingLeft()
  await remove(id, child.id)
})

test('with count the response is an array of children with different names and addresses', async () => {
  const id = await createPaused()

  const response = await fork(id, { count: 5 })
  const ids: string[] = response.body.data.map((child: { id: string }) => child.id)
  for (const child of ids) await waitForStatus(child, 'running')

  const views = await Promise.all(ids.map((child) => viewOf(child)))
  assert.equal(new Set(views.map((view) => view.name)).size, 5)
  assert.equal(new Set(views.map((view) => view.ip)).size, 5)
  assert.equal(host.calls.filter((call) => call === `POST /v1/vms/${id}/forks`).length, 1)
  assert.equal((await fork(id, { count: 1, start_paused: true })).body.data.length, 1)
  await assertNothingLeft()
  await remove(id, ...(await childrenOf(id)).map((child) => child.id))
})

test('several children are created all or not at all: cap, credit, memory', async () => {
  const bob = await user({ plan: 'beginner' })
  const id = await createPaused({ shape: 's-2vcpu-4gb' }, bob)
  const capped = await fork(id, { count: 5 }, bob)
  const crowded = await fork(id, { count: 3 }, bob)
  await setBalance(deps.db, bob.id, 0)
  const broke = await fork(id, {}, bob)

  assert.deepEqual([capped.status, capped.body.data.code], [429, 'cap_reached'])
  assert.deepEqual([crowded.status, crowded.body.message], [503, 'no capacity for s-2vcpu-4gb in eu'])
  assert.deepEqual([broke.status, broke.body.data.code], [402, 'insufficient_credit'])
  assert.deepEqual(await childrenOf(id), [])
  await send('DELETE', `/v1/sandboxes/${id}`, bob)
  await waitForStatus(id, 'destroyed', bob)
  await assertNothingLeft()
})

test('forks count towards the daily cap, even those that never ran', async () => {
  const bob = await user({ plan: 'pro' })
  const id = await createPaused({}, bob)
  await deps.db.updateTable('users').set({ plan: 'free' }).where('id', '=', bob.id).execute()
  const before = await send('POST', `/v1/sandboxes`, bob, { shape: 's-1vcpu-256mb' })
  await deps.db.updateTable('users').set({ plan: 'enterprise' }).where('id', '=', bob.id).execute()

  for (let round = 0; round < 9; round++) {
    const { data } = (await fork(id, { start_paused: true }, bob)).body
    await send('DELETE', `/v1/sandboxes/${data.id}`, bob)
    await waitForStatus(data.id, 'destroyed', bob)
  }
  await send('DELETE', `/v1/sandboxes/${id}`, bob)
  await waitForStatus(id, 'destroyed', bob)
  await deps.db.updateTable('users').set({ plan: 'free' }).where('id', '=', bob.id).execute()
  const eleventh = await send('POST', `/v1/sandboxes`, bob, { shape: 's-1vcpu-256mb' })

  assert.equal(before.body.data.code, 'cap_reached')
  assert.deepEqual([eleventh.status, eleventh.body.data.code], [429, 'daily_cap_reached'])
})

test('deleting the source right after the response does not affect its children', async () => {
  const id = await createPaused()
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeResume: () => gate.promise }
  const child = (await fork(id)).body.data

  await remove(id)
  gate.resolve()

  await waitForStatus(child.id, 'running')
  await remove(child.id)
})

test('a failed copy is 503, and its child is failed and holds no resources', async () => {
  const id = await createPaused()
  host.hooks = {
    beforeFork: () => {
      throw new FakeHostFailure('internal', '/srv/secret')
    },
  }

  const response = await fork(id, { count: 2 })

  assert.deepEqual([response.status, response.body.message], [503, 'fork unavailable'])
  const children = await childrenOf(id)
  assert.deepEqual(
    children.map((child) => [child.status, child.status_reason]),
    [
      ['failed', 'the copy was not made'],
      ['failed', 'the copy was not made'],
    ],
  )
  await assertNothingLeft()
  await remove(id)
})

test('deleting the source during the copy is 409', async () => {
  const id = await createPaused()
  host.hooks = {
    beforeFork: async () => {
      await send('DELETE', `/v1/sandboxes/${id}`, ada)
      throw new FakeHostFailure('not_found')
    },
  }

  const response = await fork(id)

  assert.equal(response.status, 409)
  await waitForStatus(id, 'destroyed')
  await assertNothingLeft()
})

test('a sandbox that is paused or resumed before the copy is copied in its new status', async (t) => {
  const { id } = (await create(ada)).body.data
  const forkVm = host.forkVm.bind(host)
  const requested: HostVmForkBody[] = []
  const mocked = t.mock.method(host, 'forkVm', async (source: string, body: HostVmForkBody) => {
    requested.push(body)
    if (requested.length === 1) {
      await send('POST', `/v1/sandboxes/${id}/pause`, ada)
      await waitForStatus(id, 'paused')
    }
    if (requested.length === 3) {
      for (const [move, status] of Object.entries({ resume: 'running', pause: 'paused' })) {
        await send('POST', `/v1/sandboxes/${id}/${move}`, ada)
        await waitForStatus(id, status)
      }
      throw new FakeHostFailure('snapshot_missing', 'the generation was deleted')
    }
    return forkVm(source, body)
  })

  const live = await fork(id, { live: true, start_paused: true })
  const saved = await fork(id, { start_paused: true })
  mocked.mock.restore()

  assert.deepEqual([live.status, saved.status], [202, 202])
  assert.deepEqual(
    requested.map(({ live, generation }) => live ?? generation),
    [true, 1, 1, 2],
  )
  await assertNothingLeft()
  await remove(id, live.body.data.id, saved.body.data.id)
})

test('several live forks at once are made one after the other', async () => {
  const { id } = (await create(ada)).body.data

  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeFork: () => gate.promise }

  const requests = Array.from({ length: 4 }, () => fork(id, { live: true, start_paused: true }))
  await until(() => host.calls.filter((call) => call === `POST /v1/vms/${id}/forks`).length === 4)
  gate.resolve()
  const responses = await Promise.all(requests)

  assert.deepEqual(
    responses.map((response) => response.status),
    [202, 202, 202, 202],
  )
  await assertNothingLeft()
  await remove(id, ...responses.map((response) => response.body.data.id))
})

test('a child that does not start is in error, and can be resumed', async () => {
  const id = await createPaused()
  host.hooks = {
    beforeResume: () => {
      throw new FakeHostFailure('guest_unreachable')
    },
  }
  const child = (await fork(id)).body.data
  await waitForStatus(child.id, 'error')
  const { status_reason } = await viewOf(child.id)
  host.hooks = {}
  await remove(id)

  await send('POST', `/v1/sandboxes/${child.id}/resume`, ada)
  await waitForStatus(child.id, 'running')

  assert.equal(status_reason, 'could not be resumed: the agent in the VM did not answer')
  await assertNothingLeft()
  await remove(child.id)
})

test('a child without a confirmed identity never runs: its VM is deleted, and the reason is recorded', async () => {
  const id = await createPaused()
  host.hooks = {
    beforeResume: () => {
      throw new FakeHostFailure('identity_failed', 'the guest did not confirm its machine-id')
    },
  }

  const child = (await fork(id)).body.data
  await waitForStatus(child.id, 'failed')

  assert.equal(host.vms.has(child.id), false)
  assert.match((await viewOf(child.id)).status_reason, /identity: the guest did not confirm its machine-id$/)
  await assertNothingLeft()
  await remove(id)
})

test('a child that is deleted while forking leaks nothing', async () => {
  const id = await createPaused()
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeResume: () => gate.promise }
  const child = (await fork(id)).body.data
  await until(() => host.vms.get(child.id)?.state === 'resuming')

  await remove(child.id)
  gate.resolve()

  assert.equal(host.vms.has(child.id), false)
  await assertNothingLeft()
  await remove(id)
})

test('the same Idempotency-Key returns the same child', async () => {
  const id = await createPaused()
  const post = async (payload: object): Promise<TestResponse> => {
    const headers = { ...ada.headers, 'idempotency-key': 'fork-1' }
    const response = await app.inject({ method: 'POST', url: `/v1/sandboxes/${id}/fork`, headers, payload })
    return { status: response.statusCode, headers: response.headers, body: response.json() }
  }

  const [first, second] = [await post({ count: 2 }), await post({ count: 2 })]
  const other = await post({ count: 3 })

  assert.deepEqual([second.status, second.headers['idempotent-replayed']], [202, 'true'])
  assert.deepEqual(second.body, first.body)
  assert.equal(other.status, 409)
  assert.equal((await childrenOf(id)).length, 2)
  await until(async () => (await childrenOf(id)).every((child) => child.status === 'running'))
  await remove(id, ...(await childrenOf(id)).map((child) => child.id))
})

test('a pause during a live fork waits for it', async () => {
  const { id } = (await create(ada)).body.data
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeFork: () => gate.promise }
  const forked = fork(id, { live: true })
  await until(() => host.vms.get(id)!.operation !== undefined)

  const accepted = await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await until(() => host.calls.filter((call) => call === `POST /v1/vms/${id}/pause`).length > 1)
  gate.resolve()

  assert.equal(accepted.status, 202)
  await waitForStatus(id, 'paused')
  const child = (await forked).body.data
  await waitForStatus(child.id, 'running')
  await assertNothingLeft()
  await remove(id, child.id)
})

test('one source can be forked by many requests at once', async () => {
  const id = await createPaused()

  const responses = await Promise.all(Array.from({ length: 6 }, () => fork(id)))
  const ids = responses.map((response) => response.body.data.id)
  for (const child of ids) await waitForStatus(child, 'running')

  assert.equal(new Set(ids).size, 6)
  await assertNothingLeft()
  await remove(id, ...ids)
})
