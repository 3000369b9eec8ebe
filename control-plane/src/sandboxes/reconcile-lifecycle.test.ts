/** How reconcile.ts repairs paused, resuming and forking sandboxes. The tests run the sweep and the jobs. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { watchHosts } from '../hosts/heartbeat.ts'
import { writeHeartbeat } from '../jobs/processes.ts'
import { JOBS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import { createTestDeps, reconnect } from '../testing/app.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { failOrphanedCreates } from './orphaned-creates.ts'
import { reconcile } from './reconcile.ts'

const { deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp({ startWorker: false })
const ada = await user({ plan: 'local' })

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const waitForStatus = (id: string, status: string) =>
  until(async () => (await viewOf(id)).status === status, `${id} is ${status}`, 15_000)

/** Runs a worker for queued jobs while `during` runs. */
async function withWorker(during: () => Promise<unknown>): Promise<void> {
  const own = createTestDeps(reconnect(deps.database), { hostSocket: host.socket })
  after(() => own.hosts.close())
  const worker = await startWorker(own, { jobs: JOBS, sweeps: [] })
  try {
    await during()
  } finally {
    await worker.stop()
  }
}

async function createPaused(): Promise<string> {
  const { id } = (await create(ada)).body.data
  await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  await withWorker(() => waitForStatus(id, 'paused'))
  return id
}
async function destroyAll(...ids: string[]): Promise<void> {
  for (const id of ids) await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await withWorker(() => Promise.all(ids.map((id) => waitForStatus(id, 'destroyed'))))
}

test('a sandbox that is paused or in error and lost by its host becomes failed and is no longer charged', async () => {
  const [first, second] = [await createPaused(), await createPaused()]
  await sql`update sandboxes set status = 'error' where id = ${second}`.execute(deps.db)
  host.loseVm(first)
  host.loseVm(second)

  await reconcile.run(deps)

  for (const id of [first, second]) {
    const view = await viewOf(id)
    assert.deepEqual([view.status, view.status_reason], ['failed', 'the VM and its data no longer exist on the host'])
  }
  await assertNothingLeft()
})

test('a paused sandbox whose VM runs is paused again, and its memory is counted until then', async () => {
  const id = await createPaused()
  host.vms.get(id)!.state = 'running'

  await reconcile.run(deps)
  const found = await viewOf(id)
  await assertNothingLeft()
  await withWorker(() => waitForStatus(id, 'paused'))

  assert.equal(found.status, 'pausing')
  assert.match((await viewOf(id)).status_reason, /running on its host while the sandbox was paused/)
  assert.equal(host.vms.get(id)!.generations.at(-1), 2)
  await assertNothingLeft()
  await destroyAll(id)
})

test('a VM that runs without a reservation makes its host full, not overcommitted', async () => {
  const id = await createPaused()
  await sql`update hosts set mem_mib = reserved_mib`.execute(deps.db)
  host.vms.get(id)!.state = 'running'

  await reconcile.run(deps)

  assert.equal((await viewOf(id)).status, 'pausing')
  await assertNothingLeft()
  await watchHosts.run(deps)
  await destroyAll(id)
})

test('a running sandbox whose host has paused it becomes error, and can be resumed', async () => {
  const { id } = (await create(ada)).body.data
  await host.pauseVm(id, { fence: host.vms.get(id)!.fence, limit_ms: 1_000 })

  await reconcile.run(deps)
  const lost = await viewOf(id)
  await assertNothingLeft()
  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await withWorker(() => waitForStatus(id, 'running'))

  assert.deepEqual([lost.status, lost.status_reason], ['error', 'the host paused the VM; resume continues from there'])
  await destroyAll(id)
})

test('a pausing sandbox whose VM is dead or lost is repaired without its job', async () => {
  const [dead, lost] = [(await create(ada)).body.data.id, (await create(ada)).body.data.id]
  for (const id of [dead, lost]) await send('POST', `/v1/sandboxes/${id}/pause`, ada)
  host.killVm(dead, 'QEMU ended')
  host.loseVm(lost)

  await reconcile.run(deps)

  assert.deepEqual([(await viewOf(dead)).status, (await viewOf(lost)).status], ['error', 'failed'])
  await assertNothingLeft()
  await destroyAll(dead)
})

test('an operation whose job is lost gets another job', async () => {
  const [pausing, resuming] = [(await create(ada)).body.data.id, await createPaused()]
  const forked = await createPaused()
  await send('POST', `/v1/sandboxes/${pausing}/pause`, ada)
  await send('POST', `/v1/sandboxes/${resuming}/resume`, ada)
  const child = (await send('POST', `/v1/sandboxes/${forked}/fork`, ada)).body.data.id
  await sql`delete from graphile_worker._private_jobs`.execute(deps.db)

  await reconcile.run(deps)
  await withWorker(async () => {
    await waitForStatus(pausing, 'paused')
    await waitForStatus(resuming, 'running')
    await waitForStatus(child, 'running')
  })

  await assertNothingLeft()
  await destroyAll(pausing, resuming, forked, child)
})

test('a fork whose process died before the response is rolled back', async () => {
  const id = await createPaused()
  const dead = createTestDeps(reconnect(deps.database), { hostSocket: host.socket })
  after(() => dead.hosts.close())
  await writeHeartbeat(dead, [])
  host.hooks = { afterFork: () => new Promise(() => {}) }
  void send('POST', `/v1/sandboxes/${id}/fork`, ada).catch(() => {})
  await until(() => host.vms.size >= 2)
  const child = await deps.db
    .selectFrom('sandboxes')
    .selectAll()
    .where('forked_from', '=', id)
    .executeTakeFirstOrThrow()
  await sql`update sandboxes set owner = 'a process that died' where id = ${child.id}`.execute(deps.db)

  await reconcile.run(deps)
  const untouched = await viewOf(child.id)
  await failOrphanedCreates.run(deps)

  assert.equal(untouched.status, 'forking')
  const view = await viewOf(child.id)
  assert.deepEqual(
    [view.status, view.status_reason],
    ['failed', 'the service stopped while it was creating the sandbox'],
  )
  assert.equal(host.vms.has(child.id), false)
  await assertNothingLeft()
  await destroyAll(id)
})

test('paused sandboxes of an unreachable host stay paused', async () => {
  const id = await createPaused()
  await host.stop()

  await reconcile.run(deps)
  await host.start()

  assert.equal((await viewOf(id)).status, 'paused')
  await destroyAll(id)
})

test('a sandbox in error can be deleted', async () => {
  const { id } = (await create(ada)).body.data
  host.killVm(id, 'QEMU ended')
  await reconcile.run(deps)
  const broken = await viewOf(id)

  await destroyAll(id)

  assert.equal(broken.status, 'error')
  assert.equal(host.vms.has(id), false)
  await assertNothingLeft()
})
