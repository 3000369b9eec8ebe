import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { newId } from '@warren/protocol'
import { sql } from 'kysely'
import { createHostedApp } from '../testing/with-host.ts'
import { reconcile } from './reconcile.ts'

const { deps, host, user, create, send, get, assertNothingLeft } = await createHostedApp({ startWorker: false })
const ada = await user()

test.beforeEach(() => {
  host.hooks = {}
})

const viewOf = async (id: string) => (await get(`/v1/sandboxes/${id}`, ada.key)).body.data
const usageOf = (id: string) =>
  deps.db.selectFrom('usage_intervals').selectAll().where('sandbox_id', '=', id).orderBy('id').execute()

test('a sandbox whose VM died is in error with the reason, and its memory is released', async () => {
  const { id } = (await create(ada)).body.data
  host.killVm(id, 'QEMU ended by SIGKILL')

  await reconcile.run(deps)

  const view = await viewOf(id)
  assert.deepEqual([view.status, view.status_reason], ['error', 'the VM ended: QEMU ended by SIGKILL'])
  assert.ok(host.vms.has(id), 'its disk is still there')
  const { reserved_mib, vm_count } = await deps.db.selectFrom('hosts').selectAll().executeTakeFirstOrThrow()
  assert.deepEqual([reserved_mib, vm_count], [0, 0])
  const [running, error] = await usageOf(id)
  assert.deepEqual([running!.kind, error!.kind, error!.ended_at], ['running', 'error', null])
  assert.deepEqual(running!.ended_at, error!.started_at)
  host.loseVm(id)
  await deps.db.updateTable('sandboxes').set({ status: 'destroyed' }).where('id', '=', id).execute()
  await sql`update usage_intervals set ended_at = now() where ended_at is null`.execute(deps.db)
})

test('a sandbox whose VM no longer exists on its host is failed and is no longer charged', async () => {
  const { id } = (await create(ada)).body.data
  host.loseVm(id)

  await reconcile.run(deps)
  await reconcile.run(deps)

  const view = await viewOf(id)
  assert.deepEqual([view.status, view.status_reason], ['failed', 'the VM and its data no longer exist on the host'])
  await assertNothingLeft()
})

test('an orphaned VM is deleted, with a fence that blocks the operation that created it', async () => {
  const { id } = (await create(ada)).body.data
  const stray = newId('sandbox')
  host.vms.set(stray, { ...host.vms.get(id)!, id: stray, fence: 7 })

  await reconcile.run(deps)

  assert.ok(!host.vms.has(stray))
  assert.equal((await viewOf(id)).status, 'running')
  await assertNothingLeft()
})

test('a VM that is older than the database, and not in it, is kept and reported', async (t) => {
  const { id } = (await create(ada)).body.data
  const foreign = newId('sandbox', Date.now() - 3_600_000)
  host.vms.set(foreign, { ...host.vms.get(id)!, id: foreign })
  const error = t.mock.method(deps.log, 'error')

  await reconcile.run(deps)
  await reconcile.run(deps)

  assert.ok(host.vms.has(foreign))
  assert.equal(error.mock.callCount(), 1)
  assert.match(String(error.mock.calls[0]!.arguments), /does not know/)
  host.vms.delete(foreign)
})

test('a sandbox that becomes running while its host is asked is not treated as lost', async () => {
  const asked = Promise.withResolvers<void>()
  const created = Promise.withResolvers<void>()
  let stale: Promise<void> | undefined
  host.hooks = {
    state: () => {
      stale ??= created.promise
      asked.resolve()
      return stale
    },
  }
  const vms = [...host.vms]
  const swept = reconcile.run(deps)
  await asked.promise
  const { id } = (await create(ada)).body.data
  // The response in flight does not contain it.
  const made = host.vms.get(id)!
  host.vms.delete(id)
  created.resolve()
  await swept
  host.vms.set(id, made)

  assert.equal(
    vms.some(([known]) => known === id),
    false,
  )
  assert.equal((await viewOf(id)).status, 'running')
})

test('a sandbox on which an operation has begun meanwhile is not repaired', async () => {
  const { id } = (await create(ada)).body.data
  host.killVm(id, 'gone')
  host.hooks = { state: () => void send('DELETE', `/v1/sandboxes/${id}`, ada) }

  await reconcile.run(deps)

  await until(async () => ['destroying', 'error'].includes((await viewOf(id)).status))
  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  assert.equal((await viewOf(id)).status, 'destroying')
  host.loseVm(id)
})

test('sandboxes of an unreachable host are not changed', async () => {
  const { id } = (await create(ada)).body.data
  await host.stop()

  await reconcile.run(deps)
  await host.start()

  assert.equal((await viewOf(id)).status, 'running')
})

test('reserved memory that differs from the sandboxes of a host is corrected', async () => {
  const before = await deps.db.selectFrom('hosts').select(['reserved_mib', 'vm_count']).executeTakeFirst()
  await sql`update hosts set reserved_mib = reserved_mib + 512, vm_count = vm_count + 3`.execute(deps.db)

  await reconcile.run(deps)

  assert.deepEqual(await deps.db.selectFrom('hosts').select(['reserved_mib', 'vm_count']).executeTakeFirst(), before)
})
