import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmResumeBody } from '@warren/protocol'
import { sql } from 'kysely'
import type { TestUser } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { setBalance } from '../testing/set-balance.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp({ host: { memMib: 5120 } })
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string, who = ada) => (await get(`/v1/sandboxes/${id}`, who.key)).body.data
const waitForStatus = (id: string, status: string, who = ada) =>
  until(async () => (await viewOf(id, who)).status === status, `${id} is ${status}`, 30_000)
const eventsOf = async (id: string) => (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data.data
const resume = (id: string, who = ada) => send('POST', `/v1/sandboxes/${id}/resume`, who)
async function createPaused(body: object = {}, who: TestUser = ada): Promise<string> {
  const { id } = (await create(who, body)).body.data
  assert.equal((await send('POST', `/v1/sandboxes/${id}/pause`, who)).status, 202)
  await waitForStatus(id, 'paused', who)
  return id
}
const remove = async (id: string, who = ada) => {
  await send('DELETE', `/v1/sandboxes/${id}`, who)
  await waitForStatus(id, 'destroyed', who)
}

test('a resume is accepted at once, and the VM starts with the identity and settings of the sandbox', async () => {
  const id = await createPaused({ name: 'phoenix', envs: { SECRET: 'x' } })
  const asked: HostVmResumeBody[] = []
  const gate = Promise.withResolvers<void>()
  host.hooks = {
    beforeResume: (_, body) => {
      asked.push(body)
      return gate.promise
    },
  }

  const accepted = await resume(id)
  const meanwhile = await viewOf(id)
  gate.resolve()
  await waitForStatus(id, 'running')

  const view = await viewOf(id)
  assert.deepEqual([accepted.status, accepted.headers['x-poll-after']], [202, '1'])
  assert.deepEqual([accepted.body.data.status, meanwhile.status], ['resuming', 'resuming'])
  assert.ok(view.last_resumed_at)
  assert.equal(view.status_reason, undefined)
  const { ip, hostname, envs } = asked[0]!
  assert.deepEqual({ ip, hostname, envs }, { ip: view.ip, hostname: 'phoenix', envs: { SECRET: 'x' } })
  await assertNothingLeft()
  const exec = await send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'sh', args: ['-c', 'echo $SECRET'] })
  assert.equal(exec.body.data.result.stdout, 'x\n')
  await remove(id)
})

test('a resuming sandbox is charged as paused until it runs', async () => {
  const id = await createPaused()
  await resume(id)
  await waitForStatus(id, 'running')

  const rows = await deps.db
    .selectFrom('usage_intervals')
    .selectAll()
    .where('sandbox_id', '=', id)
    .orderBy('id')
    .execute()
  assert.deepEqual(
    rows.map((row) => row.kind),
    ['running', 'paused', 'running'],
  )
  assert.deepEqual([rows[0]!.ended_at, rows[1]!.ended_at], [rows[1]!.started_at, rows[2]!.started_at])
  assert.equal(rows[2]!.ended_at, null)
  await remove(id)
})

test('a resume of a sandbox that is neither paused nor in error is 409', async () => {
  const { id } = (await create(ada)).body.data

  const response = await resume(id)

  assert.deepEqual([response.status, response.body.data.message], [409, 'sandbox is running, expected paused or error'])
  await remove(id)
})

test('the cap on resume counts all other sandboxes, paused ones included', async () => {
  const bob = await user({ plan: 'free' })
  const id = await createPaused({}, bob)
  const allowed = await resume(id, bob)
  await waitForStatus(id, 'running', bob)
  await send('POST', `/v1/sandboxes/${id}/pause`, bob)
  await waitForStatus(id, 'paused', bob)
  await deps.db.updateTable('users').set({ plan: 'pro' }).where('id', '=', bob.id).execute()
  const other = await createPaused({}, bob)
  await deps.db.updateTable('users').set({ plan: 'free' }).where('id', '=', bob.id).execute()

  const refused = await resume(id, bob)

  assert.equal(allowed.status, 202)
  assert.deepEqual([refused.status, refused.body.data.code], [429, 'cap_reached'])
  assert.equal((await viewOf(id, bob)).status, 'paused')
  await remove(id, bob)
  await remove(other, bob)
})

test('without credit a resume is 402 and the sandbox stays paused', async () => {
  const bob = await user()
  const id = await createPaused({}, bob)
  await setBalance(deps.db, bob.id, 0)

  const refused = await resume(id, bob)

  assert.deepEqual([refused.status, refused.body.data.code], [402, 'insufficient_credit'])
  assert.equal((await viewOf(id, bob)).status, 'paused')
  await remove(id, bob)
})

test('without capacity on its host a resume is 503, and succeeds once there is capacity', async () => {
  const id = await createPaused({ shape: 's-1vcpu-2gb' })
  const other = (await create(ada, { shape: 's-2vcpu-4gb' })).body.data.id

  const refused = await resume(id)
  await remove(other)
  const accepted = await resume(id)

  assert.deepEqual([refused.status, refused.headers['retry-after']], [503, '2'])
  assert.equal(refused.body.message, 'no capacity for s-1vcpu-2gb in eu')
  assert.equal(accepted.status, 202)
  await waitForStatus(id, 'running')
  await remove(id)
  await assertNothingLeft()
})

test('a transient failure is retried', async () => {
  const id = await createPaused()
  let tries = 0
  host.hooks = {
    beforeResume: () => {
      tries++
      if (tries < 3) throw new FakeHostFailure('guest_unreachable')
    },
  }

  await resume(id)
  await waitForStatus(id, 'running')

  assert.equal(tries, 3)
  await remove(id)
})

test('after three attempts the sandbox is in error and holds no memory; another resume has three attempts again', async () => {
  const id = await createPaused()
  let tries = 0
  host.hooks = {
    beforeResume: () => {
      tries++
      throw new FakeHostFailure('boot_failed', '/srv/secret')
    },
  }

  await resume(id)
  await waitForStatus(id, 'error')

  assert.equal(tries, 3)
  assert.equal((await viewOf(id)).status_reason, 'could not be resumed: the VM did not start')
  await assertNothingLeft()
  await resume(id)
  await until(() => tries === 6)
  await waitForStatus(id, 'error')
  host.hooks = {}
  await resume(id)
  await waitForStatus(id, 'running')
  assert.equal((await viewOf(id)).status_reason, undefined)
  await remove(id)
})

test('a damaged snapshot fails the resume at once, and the next one uses the older snapshot and says so', async () => {
  const id = await createPaused()
  await resume(id)
  await waitForStatus(id, 'running')
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await waitForStatus(id, 'paused')
  host.damageVm(id)
  const before = host.calls.filter((call) => call === `POST /v1/vms/${id}/resume`).length

  await resume(id)
  await waitForStatus(id, 'error')

  assert.equal(host.calls.filter((call) => call === `POST /v1/vms/${id}/resume`).length, before + 1)
  assert.equal(
    (await viewOf(id)).status_reason,
    'could not be resumed: generation 2 is damaged: the checksum of ram.diff does not match; the next resume uses generation 1',
  )
  await resume(id)
  await waitForStatus(id, 'running')
  assert.match((await viewOf(id)).status_reason, /^resumed from older generation 1, saved at /)
  assert.match((await eventsOf(id))[0].reason, /^resumed from older generation 1/)
  await remove(id)
})

test('a host that dies during the resume is asked again when it is back', async () => {
  for (const hook of ['beforeResume', 'afterResume'] as const) {
    const id = await createPaused()
    let reached = false
    host.hooks = {
      [hook]: () => {
        reached = true
        return new Promise(() => {})
      },
    }
    await resume(id)
    await until(() => reached)

    await host.stop()
    host.hooks = {}
    await host.start()

    await waitForStatus(id, 'running')
    await assertNothingLeft()
    await remove(id)
  }
})

test('a resume fails after a minute without an response; a VM that the host starts later is paused again', async () => {
  const id = await createPaused()
  await host.stop()
  await resume(id)
  await sql`update sandboxes set status_since = now() - interval '2 minutes' where id = ${id}`.execute(deps.db)

  await waitForStatus(id, 'error')
  host.vms.get(id)!.state = 'running'
  await host.start()
  await waitForStatus(id, 'paused')

  const [saved, parked, failed] = await eventsOf(id)
  assert.equal(failed.reason, 'could not be resumed: the host did not answer in time')
  assert.deepEqual([parked.from, parked.to, parked.actor], ['error', 'pausing', 'system'])
  assert.deepEqual([saved.from, saved.to], ['pausing', 'paused'])
  assert.equal(host.vms.get(id)!.state, 'paused')
  await assertNothingLeft()
  await remove(id)
})

test('a delete wins over a resume in progress', async () => {
  const id = await createPaused()
  const gate = Promise.withResolvers<void>()
  host.hooks = { beforeResume: () => gate.promise }
  await resume(id)
  await until(() => host.vms.get(id)?.state === 'resuming')

  await remove(id)
  gate.resolve()

  assert.equal(host.vms.has(id), false)
  await assertNothingLeft()
})
