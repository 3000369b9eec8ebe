/** No worker runs here: the tests run each sweep, in this process or in another one on the same database. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { createActivity, flushActivity } from '../guest/activity.ts'
import { removeProcess, writeHeartbeat } from '../jobs/processes.ts'
import { createTestDeps, reconnect } from '../testing/app.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { autoPause } from './auto-pause.ts'
import { pauseJob } from './pause.ts'

const { deps, host, user, create, send, get } = await createHostedApp({ startWorker: false })
const ada = await user({ plan: 'local' })

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const statusOf = async (id: string) => (await viewOf(id)).status
const exec = (id: string) => send('POST', `/v1/sandboxes/${id}/exec`, ada, { cmd: 'true' })
const rowOf = (id: string) => deps.db.selectFrom('sandboxes').selectAll().where('id', '=', id).executeTakeFirstOrThrow()

/** Creates a sandbox with an idle limit of 60 s that has been idle for `seconds`. */
async function createIdle(seconds: number): Promise<string> {
  const { id } = (await create(ada, { auto_pause_after_seconds: 60 })).body.data
  await sql`update sandboxes set last_active_at = now() - make_interval(secs => ${seconds}) where id = ${id}`.execute(
    deps.db,
  )
  return id
}

/** All processes flush their uses, then one of them pauses idle sandboxes. */
async function sweep(...others: Deps[]): Promise<void> {
  for (const one of [deps, ...others]) {
    await writeHeartbeat(one, [])
    await flushActivity.run(one)
  }
  await autoPause.run(deps)
}

async function startOtherProcess(): Promise<Deps> {
  const other = createTestDeps(reconnect(deps.database), { hostSocket: host.socket })
  after(() => other.hosts.close())
  await writeHeartbeat(other, [])
  return other
}

test('a sandbox that was idle for its limit is paused, with the reason on the sandbox and in its events', async () => {
  const id = await createIdle(61)

  await sweep()

  const view = await viewOf(id)
  assert.deepEqual([view.status, view.status_reason], ['pausing', 'auto-pause: idle for 60 s'])
  const { data } = (await get(`/v1/sandboxes/${id}/events`, ada.key)).body.data
  assert.deepEqual([data[0].actor, data[0].from, data[0].to], ['auto-pause', 'running', 'pausing'])
})

test('a sandbox that was used within its limit, or has no limit, keeps running', async () => {
  const used = await createIdle(50)
  const { id: free } = (await create(ada)).body.data
  await sql`update sandboxes set last_active_at = now() - interval '1 day' where id = ${free}`.execute(deps.db)

  await sweep()

  assert.deepEqual([await statusOf(used), await statusOf(free)], ['running', 'running'])
})

test('a new sandbox starts with its whole idle time', async () => {
  const { id } = (await create(ada, { auto_pause_after_seconds: 60 })).body.data

  await sweep()

  assert.equal(await statusOf(id), 'running')
})

test('reading the status or the events is not a use; an exec is', async () => {
  const id = await createIdle(50)
  const before = (await rowOf(id)).last_active_at!

  await viewOf(id)
  await get(`/v1/sandboxes/${id}/events`, ada.key)
  await flushActivity.run(deps)
  const read = (await rowOf(id)).last_active_at!
  await exec(id)
  await flushActivity.run(deps)

  assert.deepEqual(read, before)
  assert.ok((await rowOf(id)).last_active_at! > before)
})

test('an exec in progress prevents the pause, even in another process', async () => {
  const id = await createIdle(61)
  const other = await startOtherProcess()
  const use = other.activity.beginUse(id)

  await sweep(other)
  const during = await statusOf(id)
  use[Symbol.dispose]()
  await flushActivity.run(other)
  await sql`update sandboxes set last_active_at = last_active_at - interval '61 seconds' where id = ${id}`.execute(
    deps.db,
  )
  await sweep(other)

  assert.deepEqual([during, await statusOf(id)], ['running', 'pausing'])
  await removeProcess(other)
})

test('no sandbox is paused before every live process has flushed its uses', async () => {
  const id = await createIdle(61)
  const unflushed = await startOtherProcess()
  unflushed.activity.recordUse(id)

  await sweep()
  const beforeFlush = await statusOf(id)
  await sweep(unflushed)

  assert.deepEqual([beforeFlush, await statusOf(id)], ['running', 'running'])
  await removeProcess(unflushed)
})

test('uses that could not be written are put back without replacing newer ones', async () => {
  const activity = createActivity()
  activity.recordUse('lost')
  activity.recordUse('used again')

  const drained = activity.drain()
  activity.recordUse('used again')
  activity.putBack(drained)
  const again = activity.drain()

  assert.deepEqual([...again.keys()].sort(), ['lost', 'used again'])
  assert.ok(again.get('used again')! > again.get('lost')!)
  assert.equal(activity.drain().size, 0)
})

test('an exec that races with the pause either prevents it or fails, never both', async () => {
  for (let round = 0; round < 40; round++) {
    const id = await createIdle(61)
    await writeHeartbeat(deps, [])
    await flushActivity.run(deps)

    const [ran] = await Promise.all([exec(id), autoPause.run(deps)])
    const status = await statusOf(id)

    if (ran.status === 200) assert.equal(status, 'running')
    else {
      assert.deepEqual([ran.status, ran.body.data.code], [404, 'sandbox_not_running'])
      assert.equal(status, 'pausing')
    }
    await send('DELETE', `/v1/sandboxes/${id}`, ada)
  }
})

test('an auto-pause that fails restarts the idle time', async () => {
  const id = await createIdle(61)
  host.hooks = {
    beforePause: () => {
      throw new FakeHostFailure('pause_failed', 'no space left')
    },
  }
  await sweep()
  const { fence } = await rowOf(id)
  await pauseJob.run(deps, { id, fence }, { jobId: '1', attempt: 1, signal: new AbortController().signal })
  host.hooks = {}

  await sweep()

  const view = await viewOf(id)
  assert.deepEqual([view.status, view.status_reason], ['running', 'could not be paused: no space left'])
})

test('a new limit counts from the moment it is set, and disable_auto_pause wins', async () => {
  const id = await createIdle(3600)

  await send('PATCH', `/v1/sandboxes/${id}`, ada, { auto_pause_after_seconds: 120 })
  await sweep()
  const after = await viewOf(id)
  await send('PATCH', `/v1/sandboxes/${id}`, ada, { auto_pause_after_seconds: 60, disable_auto_pause: true })
  await sql`update sandboxes set last_active_at = now() - interval '1 day' where id = ${id}`.execute(deps.db)
  await sweep()

  assert.deepEqual([after.status, after.auto_pause_after_seconds], ['running', 120])
  const off = await viewOf(id)
  assert.deepEqual([off.status, 'auto_pause_after_seconds' in off], ['running', false])
})
