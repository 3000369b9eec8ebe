import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import type { TestUser } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, get } = await createHostedApp({
  config: { allowTcgTenants: false },
  host: { memMib: 8192 },
})
const local = await user({ name: 'local', plan: 'local', operator: true })

const fork = (id: string, who: TestUser) => send('POST', `/v1/sandboxes/${id}/fork`, who, {})
const build = (who: TestUser) =>
  send('POST', '/v1/templates', who, { name: `t${Date.now()}`, dockerfile: 'FROM debian:13\nRUN true\n' })
const waitForStatus = (id: string, status: string) =>
  until(
    async () => (await get(`/v1/sandboxes/${id}`, local.key)).body.data.status === status,
    `${id} is ${status}`,
    5_000,
  )

async function reportAccel(accel: 'kvm' | 'tcg'): Promise<void> {
  host.accel = accel
  await watchHosts.run(deps)
}

test('the local user alone may use a host that emulates; with other users creates, forks and templates are refused', async () => {
  const { id } = (await create(local)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, local)
  await waitForStatus(id, 'paused')
  await deps.db.insertInto('users').values({ id: 'usr_gateway', name: 'gateway', plan: 'enterprise' }).execute()
  const refused = [await create(local), await fork(id, local), await build(local)]

  for (const { status, body } of refused) {
    assert.equal(status, 403)
    assert.equal(body.data.code, 'emulation_refused')
    assert.match(body.data.message, /not separate users.*WARREN_ALLOW_TCG_TENANTS=yes/)
  }

  await deps.db.deleteFrom('users').where('id', '=', 'usr_gateway').execute()
  assert.equal((await create(local)).status, 200)
})

test('accounts of services are not tenants', async () => {
  // The plan of such accounts is not part of this version's schema yet.
  await sql`alter table users drop constraint if exists users_plan_check`.execute(deps.db)
  await sql`insert into users (id, name, plan) values ('usr_service', 'service', 'internal')`.execute(deps.db)

  assert.equal((await create(local)).status, 200)
})

test('what exists continues: it can be paused, resumed and deleted', async () => {
  const { id } = (await create(local)).body.data
  const ada = await user({ plan: 'enterprise' })

  await send('POST', `/v1/sandboxes/${id}/pause`, local)
  await waitForStatus(id, 'paused')
  const resumed = await send('POST', `/v1/sandboxes/${id}/resume`, local)
  await waitForStatus(id, 'running')

  assert.ok(resumed.status < 300, `${resumed.status}`)
  assert.equal((await create(ada)).body.data.code, 'emulation_refused')
  assert.ok((await send('DELETE', `/v1/sandboxes/${id}`, local)).status < 300)
})

test('with KVM, or if the operator accepts the risk, several users may create', async () => {
  const berta = await user({ plan: 'enterprise' })
  await reportAccel('kvm')
  const withKvm = await create(berta)
  await reportAccel('tcg')
  const emulated = await create(berta)
  deps.config.allowTcgTenants = true
  const accepted = await create(berta)
  deps.config.allowTcgTenants = false

  assert.deepEqual([withKvm.status, emulated.status, accepted.status], [200, 403, 200])
  const { rows } = await sql<{ accel: string }>`select accel from hosts`.execute(deps.db)
  assert.deepEqual(rows, [{ accel: 'tcg' }])
})
