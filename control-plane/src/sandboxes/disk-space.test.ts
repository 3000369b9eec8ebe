import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { watchHosts } from '../hosts/heartbeat.ts'
import { createTestApp, reconnect, type TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { templateApi } from '../testing/templates.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { WAITS_FOR_DISK } from './note-waiting.ts'

const hosted = await createHostedApp({ config: { diskOvercommit: 2 } })
const { deps, host, user, create, send, get, assertNothingLeft } = hosted
const { submit, dockerfile } = templateApi(hosted)

const ROOMY = { total_mib: 1_000_000, free_mib: 900_000, floor_mib: 1_000, sandboxes_mib: 0 }
const FULL = { ...ROOMY, free_mib: 999 }
const NEARLY_FULL = /^the disk of the host is nearly full/

async function setVolume(volume: typeof ROOMY): Promise<void> {
  host.volume = volume
  await watchHosts.run(deps)
}

test.beforeEach(async () => {
  host.hooks = {}
  await setVolume(ROOMY)
})

test('below the floor creates, forks, resizes and templates are 503 with the reason, and work again above it', async () => {
  const ada = await user({ plan: 'pro' })
  const { id } = (await create(ada)).body.data
  const fork = () => send('POST', `/v1/sandboxes/${id}/fork`, ada, { live: true })
  const resize = () => send('POST', `/v1/sandboxes/${id}/resize`, ada, { disk_mib: 20_480 })
  await setVolume(FULL)

  for (const response of [await create(ada), await fork(), await resize(), await submit(ada, dockerfile('RUN true'))]) {
    assert.deepEqual([response.status, response.headers['retry-after']], [503, '2'])
    assert.match(response.body.message, NEARLY_FULL)
  }
  assert.equal((await get(`/v1/sandboxes/${id}`, ada.key)).body.data.status, 'running')
  await setVolume(ROOMY)
  assert.equal((await create(ada)).status, 200)
  assert.equal((await fork()).status, 202)
  assert.equal((await resize()).status, 200)
  await removeAll(ada)
})

test('what the host refuses in the meantime has the same reason', async () => {
  const ada = await user({ plan: 'pro' })
  const refuse = () => {
    throw new FakeHostFailure('disk_full', 'no space for a new sandbox: only 3 MiB of disk space are free')
  }
  const { id } = (await create(ada)).body.data
  host.hooks = { beforeCreate: refuse, beforeResize: refuse }

  const created = await create(ada)
  const resized = await send('POST', `/v1/sandboxes/${id}/resize`, ada, { disk_mib: 20_480 })
  host.hooks = {}

  for (const response of [created, resized]) {
    assert.equal(response.status, 503)
    assert.match(response.body.message, NEARLY_FULL)
  }
  await removeAll(ada)
})

test('disks and saved memory are promised up to the factor that the operator set', async () => {
  const ada = await user({ plan: 'pro' })
  // Twice 21,000 MiB: three sandboxes with 10,240 MiB of disk and 256 MiB of memory, and then 10,512 MiB.
  await setVolume({ ...ROOMY, free_mib: 20_000, sandboxes_mib: 2_000 })
  for (let i = 0; i < 3; i++) assert.equal((await create(ada)).status, 200)
  const { id } = (await create(ada)).body.data

  const refused = await create(ada)
  const resized = await send('POST', `/v1/sandboxes/${id}/resize`, ada, { disk_mib: 20_480 })
  const forked = await send('POST', `/v1/sandboxes/${id}/fork`, ada, { live: true })

  for (const response of [refused, resized, forked]) assert.equal(response.status, 503)
  assert.match(refused.body.message, /^no host has 10240 MiB of disk space left to promise/)
  // Memory and addresses of those that were refused are free.
  await removeAll(ada)
  await assertNothingLeft()
})

const count = (responses: readonly { status: number }[], status: number): number =>
  responses.filter((response) => response.status === status).length

test('concurrent creates in several processes never promise more than that, and a new process knows what is promised', async () => {
  const connect = async () => {
    const config = { diskOvercommit: 2, hostSocket: host.socket }
    const other = await createTestApp({ database: reconnect(deps.database), config })
    return async (who: TestUser) => {
      const body = { shape: 's-1vcpu-256mb' }
      const sent = { method: 'POST', url: '/v1/sandboxes', headers: who.headers, payload: body } as const
      return { status: (await other.app.inject(sent)).statusCode }
    }
  }
  await setVolume({ ...ROOMY, free_mib: 1_000 + 3 * 10_496, floor_mib: 1_000 })
  const users = await Promise.all(Array.from({ length: 10 }, () => user({ plan: 'pro' })))
  const createElsewhere = await connect()

  const responses = await Promise.all(users.map((who, i) => (i % 2 === 0 ? create(who) : createElsewhere(who))))

  assert.deepEqual([count(responses, 200), count(responses, 503)], [6, 4])
  const createLater = await connect()
  assert.equal((await createLater(users[0]!)).status, 503)
  const [first] = users.filter((_, i) => responses[i]!.status === 200)
  await removeAll(first!)
  const again = [await createLater(users[0]!), await createLater(users[1]!)]
  assert.deepEqual([count(again, 200), count(again, 503)], [1, 1])
  for (const who of users) await removeAll(who)
})

test('disks that are being grown at the same time never take more than that, nor does a create meanwhile', async () => {
  const ada = await user({ plan: 'pro' })
  // Three sandboxes, and 12,000 MiB more: enough for a create or one of the resizes, which take 10,496 and 10,240.
  await setVolume({ ...ROOMY, free_mib: 1_000 + (3 * 10_496 + 12_000) / 2 })
  const sandboxes = [await create(ada), await create(ada), await create(ada)].map(({ body }) => body.data.id)
  const { promise: end, resolve } = Promise.withResolvers<void>()
  const { promise: begun, resolve: begin } = Promise.withResolvers<void>()
  host.hooks = {
    beforeResize: () => {
      begin()
      return end
    },
  }

  const resized = sandboxes.map((id) => send('POST', `/v1/sandboxes/${id}/resize`, ada, { disk_mib: 20_480 }))
  await begun
  const created = await create(ada)
  resolve()
  const responses = await Promise.all(resized)

  assert.equal(created.status, 503)
  assert.deepEqual([count(responses, 200), count(responses, 503)], [1, 2])
  await removeAll(ada)
})

test('a sandbox whose guest waits for space says so, and no longer when it continues', async () => {
  const ada = await user()
  const { id } = (await create(ada)).body.data
  const reason = async () => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data.status_reason
  const vm = host.vms.get(id)!

  vm.waitsForDisk = true
  await until(async () => (await reason()) === WAITS_FOR_DISK, 'it says that it waits')
  vm.waitsForDisk = false
  await until(async () => (await reason()) === undefined, 'it says no more')

  // Why it could not be paused stays visible.
  await deps.db.updateTable('sandboxes').set({ status_reason: 'could not be paused' }).where('id', '=', id).execute()
  vm.waitsForDisk = true
  await until(async () => (await reason()) === `${WAITS_FOR_DISK}. Before: could not be paused`, 'it says both')
  vm.waitsForDisk = false
  await until(async () => (await reason()) === 'could not be paused', 'it says what it said before')

  await removeAll(ada)
})

async function removeAll(who: TestUser): Promise<void> {
  const { data } = (await get('/v1/sandboxes?limit=100', who.key)).body.data
  for (const { id } of data) await send('DELETE', `/v1/sandboxes/${id}`, who)
  await until(async () => {
    const rows = await deps.db.selectFrom('sandboxes').select('status').where('user_id', '=', who.id).execute()
    return rows.every(({ status }) => status === 'destroyed' || status === 'failed')
  }, 'all sandboxes are destroyed')
}
