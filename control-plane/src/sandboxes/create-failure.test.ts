/** A create is atomic: whatever fails, no resource leaks and no cap is used up. */
import assert from 'node:assert/strict'
import { request } from 'node:http'
import { test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { type HostFailureCode, vmmMemoryMib } from '@warren/protocol'
import { watchHosts } from '../hosts/heartbeat.ts'
import { listenOn, type TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { reconcile } from './reconcile.ts'

/** Some tests wait for it, others must be done before. */
const BOOT_LIMIT_SECONDS = Math.ceil(scaleLimit(2_000) / 1000)
const hosted = await createHostedApp({ config: { bootLimitSeconds: BOOT_LIMIT_SECONDS } })
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

test('every error of the host becomes a matching response, and the sandbox is failed with a reason', async () => {
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
    const response = await create(ada, { name: 'box' })
    const failed = await lastOf(ada)

    assert.deepEqual([response.status, response.body], [status, { status: 'error', message, code: status }])
    assert.equal(failed.status, 'failed')
    assert.ok(failed.status_reason && !failed.status_reason.includes('/root'))
    await assertNothingLeft()
    // Neither the cap of one nor the name is used up.
    host.hooks = {}
    assert.equal((await create(ada, { name: 'box' })).status, 200)
  }
})

test('a disk that the host finds too small is 400', async () => {
  const ada = await user()
  host.hooks = { beforeCreate: fail('disk_too_small') }

  const { status, body } = await create(ada)

  assert.deepEqual(
    [status, body.data],
    [400, { disk_mib: 'is too small to hold debian:13', code: 'validation_failed' }],
  )
})

test('a VM that does not start in time is rolled back', async () => {
  const ada = await user()
  host.hooks = { beforeCreate: () => never }

  const { status } = await create(ada)

  assert.equal(status, 502)
  assert.equal((await lastOf(ada)).status, 'failed')
  await assertNothingLeft()
})

test('when the host agent dies during a create, the create fails, and leftovers are removed when it is back', async () => {
  const ada = await user()
  host.hooks = { afterCreate: () => host.stop() }

  const { status, body } = await create(ada)
  host.hooks = {}

  assert.deepEqual([status, body.message], [502, 'sandbox could not be created: the host did not answer in time'])
  const failed = await lastOf(ada)
  assert.deepEqual([failed.status, failed.status_reason], ['failed', 'the host did not answer in time'])
  // The state of the VM is unknown, so its memory stays reserved.
  const { reserved_mib } = await deps.db
    .selectFrom('sandboxes')
    .select('reserved_mib')
    .where('id', '=', failed.id)
    .executeTakeFirstOrThrow()
  assert.equal(reserved_mib, vmmMemoryMib({ vcpu: 1, mem_mib: 256 }, host.accel))

  await host.start()
  await reconcile.run(deps)
  await reconcile.run(deps)
  await assertNothingLeft()
})

test('an unreachable host gets no sandboxes, and after 5 s it is no longer a candidate', async () => {
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

test('a draining host that was dead is draining again when it returns', async () => {
  await deps.db.updateTable('hosts').set({ draining: true, status: 'dead' }).execute()
  await watchHosts.run(deps)

  const { status } = await deps.db.selectFrom('hosts').select('status').executeTakeFirstOrThrow()
  const refused = await create(await user())
  await deps.db.updateTable('hosts').set({ draining: false, status: 'active' }).execute()

  assert.deepEqual([status, refused.status], ['draining', 503])
})

test('a sandbox whose caller disconnects during the create is rolled back', async () => {
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

test('a delete wins over a create in progress', async () => {
  const ada = await user()
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeCreate: () => gate.promise }
  const creating = create(ada)
  await until(() => [...host.vms.values()].some((vm) => vm.state === 'creating'))
  const { id, status, ip } = await lastOf(ada)

  const deleted = await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await until(async () => (await lastOf(ada)).status === 'destroyed')
  gate.resolve()
  const response = await creating

  assert.deepEqual([status, ip], ['creating', undefined])
  assert.deepEqual(deleted.body.data, { id, status: 'destroying' })
  assert.deepEqual(
    [response.status, response.body.message],
    [503, 'the sandbox was deleted while it was being created'],
  )
  assert.equal((await lastOf(ada)).status, 'destroyed')
  await assertNothingLeft()
})

test('a host response that does not match the schema is an error', async () => {
  const ada = await user()
  host.images = [{ name: 'debian:13', state: 'ready', min_disk_mib: 'many' as never }]

  await watchHosts.run(deps)
  host.images = [{ name: 'debian:13', state: 'ready', min_disk_mib: 512 }]

  assert.equal((await create(ada)).status, 200)
})

test('the same Idempotency-Key returns the same sandbox, and a failed create releases the key', async () => {
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
