import assert from 'node:assert/strict'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { until } from '@warren/kit/testing/until'
import { vmmMemoryMib } from '@warren/protocol'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, assertNothingLeft } = await createHostedApp({ host: { cidr: '100.64.0.0/24' } })

const randomTime = (maxMs: number) => passTime(Math.random() * maxMs, 'the moments are the input of the test')

test('of 20 concurrent creates with a cap of 5, exactly 5 succeed', async () => {
  const ada = await user({ plan: 'beginner' })
  host.hooks = { beforeCreate: () => passTime(50, 'so that the creates overlap') }

  const responses = await Promise.all(Array.from({ length: 20 }, () => create(ada)))

  const statuses = responses.map((response) => response.status)
  assert.equal(statuses.filter((status) => status === 200).length, 5, statuses.join())
  assert.equal(statuses.filter((status) => status === 429).length, 15)
  await assertNothingLeft()
})

test('of concurrent creates with the same name, one succeeds', async () => {
  const ada = await user()

  const responses = await Promise.all(Array.from({ length: 8 }, () => create(ada, { name: 'only' })))

  assert.deepEqual(responses.map((response) => response.status).sort(), [200, 409, 409, 409, 409, 409, 409, 409])
})

test('concurrent creates never overcommit the memory of a host', async () => {
  const room = host.memMib
  const eachMib = vmmMemoryMib({ vcpu: 1, mem_mib: 1024 }, host.accel)
  const { reserved_mib } = await deps.db.selectFrom('hosts').selectAll().executeTakeFirstOrThrow()
  await deps.db
    .updateTable('hosts')
    .set({ mem_mib: reserved_mib + 3 * eachMib })
    .execute()
  host.memMib = reserved_mib + 3 * eachMib
  const users = await Promise.all(Array.from({ length: 8 }, () => user()))

  const responses = await Promise.all(users.map((who) => create(who, { shape: 's-1vcpu-1gb' })))
  host.memMib = room
  await deps.db.updateTable('hosts').set({ mem_mib: room }).execute()

  const refused = responses.filter((response) => response.status === 503)
  assert.equal(responses.filter((response) => response.status === 200).length, 3)
  assert.equal(refused.length, 5)
  for (const { body, headers } of refused) {
    assert.equal(body.message, 'no capacity for s-1vcpu-1gb in eu')
    assert.equal(headers['retry-after'], '2')
  }
})

test('50 creates and deletes, randomly interleaved, leak nothing', async () => {
  const users = await Promise.all(Array.from({ length: 5 }, () => user()))
  host.hooks = {
    beforeCreate: () => randomTime(60),
    afterCreate: () => randomTime(20),
    beforeDelete: () => randomTime(40),
  }
  const everything = async () => deps.db.selectFrom('sandboxes').select(['id', 'status', 'user_id']).execute()

  const creates = Array.from({ length: 50 }, async (_, i) => {
    await randomTime(200)
    return (await create(users[i % 5]!)).status
  })
  let going = true
  const deletes = (async () => {
    while (going) {
      const rows = (await everything()).filter((row) => row.status !== 'destroyed')
      const row = rows[Math.floor(Math.random() * rows.length)]
      const owner = users.find((who) => who.id === row?.user_id)
      if (row && owner) await send('DELETE', `/v1/sandboxes/${row.id}`, owner)
      await randomTime(10)
    }
  })()
  const statuses = await Promise.all(creates)
  going = false
  await deletes

  await until(async () => !(await everything()).some((row) => row.status === 'destroying'))
  for (const status of statuses) assert.ok([200, 429, 503].includes(status), statuses.join())
  assert.ok(statuses.includes(200))
  await assertNothingLeft()

  for (const row of await everything()) {
    const owner = users.find((who) => who.id === row.user_id)
    if (owner) await send('DELETE', `/v1/sandboxes/${row.id}`, owner)
  }
  await until(async () => !(await everything()).some((row) => row.status === 'destroying'))
  await assertNothingLeft()
})

test('a released address is not reused immediately', async () => {
  const ada = await user()
  const first = await create(ada)
  await send('DELETE', `/v1/sandboxes/${first.body.data.id}`, ada)
  await until(() => !host.vms.has(first.body.data.id))

  const second = await create(ada)

  assert.notEqual(second.body.data.ip, first.body.data.ip)
})
