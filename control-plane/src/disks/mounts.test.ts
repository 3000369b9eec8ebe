/** What becomes of the mounts of a sandbox: rotations, pauses, hosts that restart or cannot be reached, errors. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createDiskSandboxes } from '../testing/disk-sandboxes.ts'
import { FakeHostFailure } from '../testing/fake-host.ts'
import { WRONG_SECRET } from '../testing/fake-mounts.ts'

const { deps, host, send, get, owner, ...api } = await createDiskSandboxes()
const { newSandbox, pause, resume, waitForStatus, setHostDisks, wantedBy } = api
const { register, rotate, attach, detach, list, waitForMount } = api
const secretsOf = (id: string) => wantedBy(id).map(({ credentials }) => credentials.secret_key)

test('a rotation reaches running mounts before its response, and paused sandboxes when they resume', async () => {
  const disk = await register(owner)
  const [running, paused] = [await newSandbox(), await newSandbox()]
  for (const id of [running, paused]) {
    await attach(owner, id, disk.id)
    await waitForMount(owner, id, 'mounted')
  }
  await pause(paused)

  assert.equal((await rotate(owner, disk.id, 'rotated')).status, 200)

  assert.deepEqual(secretsOf(running), ['rotated'])
  assert.equal((await list(owner, running))[0]!.mount_status, 'mounted')
  await resume(paused)
  assert.deepEqual(secretsOf(paused), ['rotated'])
  await waitForMount(owner, paused, 'mounted')
})

test('a mount that has failed is tried again after a rotation and after a resume', async () => {
  const disk = await register(owner, { credentials: { access_key: 'key', secret_key: WRONG_SECRET } })
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'failed')

  await rotate(owner, disk.id, 'right')
  assert.equal((await waitForMount(owner, id, 'mounted')).mount_error, undefined)
  host.vms.get(id)!.mounts.lose('/mnt/data', 'the bucket is gone; check it')
  assert.equal((await waitForMount(owner, id, 'failed')).mount_error, 'the bucket is gone; check it')
  await pause(id)
  assert.equal((await list(owner, id))[0]!.mount_status, 'failed')
  const held = Promise.withResolvers<void>()
  host.hooks.beforeMount = () => held.promise
  await resume(id)
  assert.equal((await list(owner, id))[0]!.mount_status, 'pending')
  held.resolve()
  host.hooks = {}
  await waitForMount(owner, id, 'mounted')
})

test('pause and resume keep attachments; what is detached meanwhile does not come back', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id, '/mnt/one')
  await attach(owner, id, disk.id, '/mnt/two')
  await pause(id)

  assert.equal((await detach(owner, id, disk.id, '/mnt/two')).status, 200)
  await resume(id)

  await waitForMount(owner, id, 'mounted', '/mnt/one')
  assert.deepEqual(
    wantedBy(id).map(({ mount_path }) => mount_path),
    ['/mnt/one'],
  )
})

test('a VM that is lost has nothing mounted, and a resume mounts it again', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')

  host.killVm(id, 'the QEMU process exited')
  await waitForStatus(id, 'error')

  assert.equal((await list(owner, id))[0]!.mount_status, 'pending')
  await resume(id)
  await waitForMount(owner, id, 'mounted')
})

test('a fork carries no disks', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')

  const child = (await send('POST', `/v1/sandboxes/${id}/fork`, owner, { live: true })).body.data.id
  await waitForStatus(child, 'running')

  assert.deepEqual([wantedBy(child), await list(owner, child)], [[], []])
  assert.equal((await list(owner, id))[0]!.mount_status, 'mounted')
})

test('a host that was restarted gets the mounts again, and meanwhile they are pending', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  const held = Promise.withResolvers<void>()
  host.hooks.beforeMount = () => held.promise

  await host.stop()
  // The last status that was reported.
  assert.equal((await list(owner, id))[0]!.mount_status, 'mounted')
  await host.start()

  await waitForMount(owner, id, 'pending')
  await until(() => secretsOf(id).length === 1, 'the host has the mounts again')
  held.resolve()
  host.hooks = {}
  await waitForMount(owner, id, 'mounted')
})

test('a change while the host is away is in force when it returns', async () => {
  const [disk, other] = [await register(owner), await register(owner)]
  const id = await newSandbox()
  await attach(owner, id, disk.id, '/mnt/one')
  await host.stop()

  const attached = await attach(owner, id, other.id, '/mnt/two')
  const detached = await detach(owner, id, disk.id, '/mnt/one')

  assert.deepEqual([attached.status, detached.status], [200, 200])
  await host.start()
  await waitForMount(owner, id, 'mounted', '/mnt/two')
  assert.deepEqual(
    wantedBy(id).map(({ mount_path }) => mount_path),
    ['/mnt/two'],
  )
})

test('a mount error of any length is shown with one kibibyte', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  host.hooks.beforeMount = () => {
    throw new Error('€'.repeat(2_000))
  }
  await attach(owner, id, disk.id)

  const { mount_error } = await waitForMount(owner, id, 'failed')
  host.hooks = {}

  assert.equal(mount_error, '€'.repeat(341))
})

test('a mount error that the database cannot store does not keep other statuses from being stored', async () => {
  const disk = await register(owner)
  const [hostile, other] = [await newSandbox(), await newSandbox()]
  host.hooks.beforeMount = (vm) => {
    if (vm === hostile) throw new Error('\0a\r\n\ud800b\x1b')
  }
  await attach(owner, hostile, disk.id)
  await attach(owner, other, disk.id)

  // Not by reading the lists, which ask the host about one sandbox.
  const statusOf = async (id: string) => {
    const rows = await deps.db.selectFrom('disk_attachments').selectAll().where('sandbox_id', '=', id).execute()
    return rows.map(({ status, error }) => [status, error])
  }
  await until(async () => (await statusOf(other)).join() === 'mounted,', 'the sweep has stored the other status')
  await until(async () => (await statusOf(hostile)).join().startsWith('failed'), 'and that of the hostile one')
  host.hooks = {}

  assert.deepEqual(await statusOf(hostile), [['failed', 'a \ufffdb']])
})

test('a host that can no longer mount disks makes the mounts fail, and they stay failed', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  await pause(id)
  await setHostDisks(false)
  await resume(id)

  const { mount_error } = await waitForMount(owner, id, 'failed')
  const reports = () => host.calls.filter((call) => call === 'GET /v1/mounts').length
  const before = reports()
  await until(async () => {
    assert.equal((await list(owner, id))[0]!.mount_status, 'failed')
    return reports() > before + 2
  }, 'more sweeps')
  await setHostDisks(true)
  await pause(id)
  await resume(id)

  assert.equal(mount_error, 'disks cannot be mounted on this host; ask the operator')
  await waitForMount(owner, id, 'mounted')
})

test('the owner sees what a pause could not save, until the sandbox resumes', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  const unsaved = { files: 2, bytes: 20, names: ['a\u0000b', 'c'] }

  host.hooks.details = () => ({ unsaved })
  await pause(id)
  const [paused] = await list(owner, id)
  host.hooks = {}
  await resume(id)
  await waitForMount(owner, id, 'mounted')
  const [resumed] = await list(owner, id)

  assert.deepEqual(paused!.unsaved, { ...unsaved, names: ['a b', 'c'] })
  assert.match(paused!.warning!, /^changes of 2 files could not be saved before the pause; resume the sandbox/)
  assert.deepEqual([resumed!.unsaved, resumed!.warning], [undefined, undefined])
})

test('a resume that fails does not hide what the pause could not save', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  const unsaved = { files: 1, bytes: 10, names: ['draft'] }
  host.hooks.details = () => ({ unsaved })
  await pause(id)

  host.hooks = {
    beforeResume: () => {
      throw new FakeHostFailure('snapshot_incompatible', 'saved by another host')
    },
  }
  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await waitForStatus(id, 'error')
  host.hooks = {}

  assert.deepEqual((await list(owner, id))[0]!.unsaved, unsaved)
})

test('a sandbox that did not answer before its pause may have unsaved files', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')

  host.hooks.isSilent = true
  await pause(id)
  host.hooks = {}

  const [paused] = await list(owner, id)
  assert.equal(paused!.unsaved, undefined)
  assert.match(paused!.warning!, /did not answer before the pause/)
})

test('a running sandbox shows conflicts, unsaved files and whether writes are conditional', async () => {
  const disk = await register(owner)
  const id = await newSandbox()
  await attach(owner, id, disk.id)
  await waitForMount(owner, id, 'mounted')
  const conflicts = { total: 1, files: [{ path: 'report', kept_as: '/var/lib/warren/disks/x/kept/report' }] }
  const unsaved = { files: 1, bytes: 5, names: ['draft'] }

  host.hooks.details = () => ({ unsaved, conflicts, conditional_writes: false })
  const [shown] = await list(owner, id)
  host.hooks.details = () => ({ unsaved: { files: 0, bytes: 0, names: [] }, conflicts: { total: 0, files: [] } })
  const [quiet] = await list(owner, id)
  host.hooks = {}

  assert.deepEqual([shown!.unsaved, shown!.conflicts, shown!.conditional_writes], [unsaved, conflicts, false])
  assert.match(shown!.warning!, /1 file was changed by others .* report is kept as/)
  assert.deepEqual([quiet!.unsaved, quiet!.conflicts, quiet!.warning], [undefined, undefined, undefined])
})
