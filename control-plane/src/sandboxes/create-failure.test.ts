/** Create is atomic: whatever fails, nothing stays behind, and nothing counts. */
import assert from 'node:assert/strict'
import { request } from 'node:http'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostFailureCode } from '@warren/protocol'
import { watchHosts } from '../hosts/heartbeat.ts'
import { listenOn, type TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { reconcile } from './reconcile.ts'

const hosted = await createHostedApp({ config: { bootLimitSeconds: 1 } })
const { app, deps, host, user, create, send, get, assertNothingLeft } = hosted
const { port } = await listenOn(app)
const never = new Promise<never>(() => {})

test.beforeEach(() => {
  host.hooks = {}
})

const lastOf = async (who: TestUser) => (await get('/v1/sandboxes?limit=1', who.key)).body.data.data[0]
const fail = (code: HostFailureCode) => () => {
  throw new FakeHostFailure(code, '/srv/secret/path broke')
}

test('whatever the host answers becomes a fitting error, and the sandbox is failed with a reason', async () => {
  const expected: [HostFailureCode, number, string][] = [
    ['no_capacity', 503, 'no capacity for s-1vcpu-256mb in eu'],
    ['image_not_ready', 503, 'rootfs debian:13 is not ready'],
    ['boot_failed', 502, 'sandbox could not be created: the VM did not start'],
    ['guest_unreachable', 502, 'sandbox could not be created: the agent in the VM did not answer'],
    ['internal', 502, 'sandbox could not be created: the host failed'],
    ['invalid', 502, 'sandbox could not be created: the host failed'],
  ]
  for (const [code, status, message] of expected) {
    const ada = await user({ plan: 'free' })
    host.hooks = { beforeCreate: fail(code) }
    const answer = await create(ada, { name: 'box' })
    const failed = await lastOf(ada)

    assert.deepEqual([answer.status, answer.body], [status, { status: 'error', message, code: status }])
    assert.equal(failed.status, 'failed')
    assert.ok(failed.status_reason && !failed.status_reason.includes('/root'))
    await assertNothingLeft()
    // Neither the cap of one nor the name is used up.
    host.hooks = {}
    assert.equal((await create(ada, { name: 'box' })).status, 200)
  }
})

test('a disk that the host finds too small is the fault of the caller', async () => {
  const ada = await user()
  host.hooks = { beforeCreate: fail('disk_too_small') }

  const { status, body } = await create(ada)

  assert.deepEqual(
    [status, body.data],
    [400, { disk_mib: 'is too small to hold debian:13', code: 'validation_failed' }],
  )
})

test('a VM that does not come up in time is taken back', async () => {
  const ada = await user()
  host.hooks = { beforeCreate: () => never }

  const { status } = await create(ada)

  assert.equal(status, 502)
  assert.equal((await lastOf(ada)).status, 'failed')
  await assertNothingLeft()
})

test('a host whose agent dies in the middle: the create fails, and what it left is cleared when it is back', async () => {
  const ada = await user()
  host.hooks = { afterCreate: () => host.stop() }

  const { status, body } = await create(ada)
  host.hooks = {}

  assert.deepEqual([status, body.message], [502, 'sandbox could not be created: the host did not answer in time'])
  const failed = await lastOf(ada)
  assert.deepEqual([failed.status, failed.status_reason], ['failed', 'the host did not answer in time'])
  // Nobody knows what became of the VM, so its memory is not promised to anybody else.
  const { reserved_mib } = await deps.db
    .selectFrom('sandboxes')
    .select('reserved_mib')
    .where('id', '=', failed.id)
    .executeTakeFirstOrThrow()
  assert.equal(reserved_mib, 256)

  await host.start()
  await reconcile.run(deps)
  await reconcile.run(deps)
  await assertNothingLeft()
})

test('a host that cannot be reached at all is no place for a sandbox, and after 5 s nobody tries', async () => {
  const ada = await user()
  await host.stop()

  const first = await create(ada)
  await until(async () => {
    await watchHosts.run(deps)
    const { status } = await deps.db.selectFrom('hosts').select('status').executeTakeFirstOrThrow()
    return status === 'dead'
  })
  const second = await create(ada)
  await host.start()
  await watchHosts.run(deps)
  const third = await create(ada)

  assert.equal(first.status, 502)
  assert.deepEqual([second.status, second.body.message], [503, 'no capacity for s-1vcpu-256mb in eu'])
  assert.equal(second.headers['retry-after'], '2')
  assert.equal(third.status, 200)
  await reconcile.run(deps)
  await assertNothingLeft()
})

test('a drained host comes back drained after it was dead', async () => {
  await deps.db.updateTable('hosts').set({ draining: true, status: 'dead' }).execute()
  await watchHosts.run(deps)

  const { status } = await deps.db.selectFrom('hosts').select('status').executeTakeFirstOrThrow()
  const refused = await create(await user())
  await deps.db.updateTable('hosts').set({ draining: false, status: 'active' }).execute()

  assert.deepEqual([status, refused.status], ['draining', 503])
})

test('a caller that hangs up while its sandbox is made has none', async () => {
  const ada = await user()
  let reached = false
  host.hooks = {
    beforeCreate: () => {
      reached = true
      return never
    },
  }
  const call = request({ port, method: 'POST', path: '/v1/sandboxes', headers: ada.headers })
  call.on('error', () => {})
  call.end(JSON.stringify({ shape: 's-1vcpu-256mb' }))
  await until(() => reached)

  call.destroy()

  await until(async () => (await lastOf(ada)).status === 'failed')
  assert.equal((await lastOf(ada)).status_reason, 'the caller disconnected before the sandbox was ready')
  await assertNothingLeft()
})

test('a delete wins over a create under way', async () => {
  const ada = await user()
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeCreate: () => gate.promise }
  const creating = create(ada)
  await until(() => [...host.vms.values()].some((vm) => vm.state === 'creating'))
  const { id, status, ip } = await lastOf(ada)

  const deleted = await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await until(async () => (await lastOf(ada)).status === 'destroyed')
  gate.resolve()
  const answer = await creating

  assert.deepEqual([status, ip], ['creating', undefined])
  assert.deepEqual(deleted.body.data, { id, status: 'destroying' })
  assert.deepEqual([answer.status, answer.body.message], [503, 'the sandbox was deleted while it was being created'])
  assert.equal((await lastOf(ada)).status, 'destroyed')
  await assertNothingLeft()
})

test('an answer of the host that does not fit is no answer', async () => {
  const ada = await user()
  host.images = [{ name: 'debian:13', state: 'ready', min_disk_mib: 'many' as never }]

  await watchHosts.run(deps)
  host.images = [{ name: 'debian:13', state: 'ready', min_disk_mib: 512 }]

  assert.equal((await create(ada)).status, 200)
})

test('the same key gives the same sandbox, and a failed create frees the key', async () => {
  const ada = await user()
  const headers = { 'idempotency-key': 'once' }
  host.hooks = { beforeCreate: fail('boot_failed') }
  const failed = await create(ada, {}, headers)
  host.hooks = {}

  const first = await create(ada, {}, headers)
  const second = await create(ada, {}, headers)
  const other = await create(ada, { name: 'other' }, headers)

  assert.deepEqual([failed.status, first.status, second.status, other.status], [502, 200, 200, 409])
  assert.equal(second.headers['idempotent-replayed'], 'true')
  assert.deepEqual(second.body, first.body)
  assert.equal(other.body.data.code, 'idempotency_key_reused')
})
