/** The mounts of a VM at the host: who has access when, and which status is shown. With a real S3 proxy and a guest of the test. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { after, type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { type HostMount, newId } from '@warren/protocol'
import { startFakeGuest } from './testing/fake-guest.ts'
import { openTestProxy, requestProxy, SANDBOX } from './testing/proxy.ts'
import { VmMounts } from './vm-mounts.ts'

/** Answers every request with 200, unless a test decides otherwise. */
let onStoreRequest: (request: IncomingMessage, response: ServerResponse) => void = (_, response) => void response.end()
const store = createServer((request, response) => onStoreRequest(request, response)).listen(0, '127.0.0.1')
after(() => {
  store.closeAllConnections()
  store.close()
})
await once(store, 'listening')
const endpoint = `http://127.0.0.1:${(store.address() as AddressInfo).port}`
const { proxy } = await openTestProxy({ after })

const mountAt = (mount_path: string, revision = 1): HostMount => ({
  ...{ id: newId('mount'), revision, mount_path, read_only: false, endpoint, region: 'auto', bucket: 'media' },
  ...{ sub_path: '', use_path_style: true, allow_loopback: true },
  credentials: { access_key: 'key', secret_key: 'secret' },
})

async function openMounts(t: TestContext, detachGraceMs = 300, isAdopted = false) {
  const guest = await startFakeGuest(t)
  const ended = new AbortController()
  const warnings: unknown[] = []
  const log = { warn: (...parts: unknown[]) => void warnings.push(parts) }
  const vm = { sandbox: 'sb-test', ip: SANDBOX, vmm: guest.vmm, isAdopted }
  const mounts = new VmMounts({ s3Proxy: proxy, log, detachGraceMs }, vm, ended.signal)
  t.after(() => ended.abort())
  const tokenOf = (id: string) => guest.sets.flat().find((mount) => mount.id === id)!.token
  const ask = (token: string, method = 'HEAD', target = '/') =>
    requestProxy(proxy.port, method, target, { token, from: SANDBOX })
  return { guest, mounts, ended, tokenOf, ask, warnings }
}

const statusOf = (mounts: VmMounts, { id }: HostMount): string | undefined =>
  mounts.report().mounts.find((mount) => mount.id === id)?.status

test('a guest that never answers loses its access to a disk that is detached, also for requests under way', async (t) => {
  const { guest, mounts, tokenOf, ask, warnings } = await openMounts(t)
  const [kept, gone] = [mountAt('/mnt/kept'), mountAt('/mnt/gone')]
  await mounts.set({ revision: 1, mounts: [kept, gone] })
  assert.equal((await ask(tokenOf(gone.id))).status, 200)
  const isHeld = Promise.withResolvers<void>()
  onStoreRequest = () => isHeld.resolve()
  const underWay = ask(tokenOf(gone.id), 'GET', '/held')
  await isHeld.promise
  onStoreRequest = (_, response) => void response.end()

  guest.onSet = () => Promise.withResolvers<void>().promise
  const set = mounts.set({ revision: 2, mounts: [kept] })
  set.catch(() => {}) // Nothing answers it.

  assert.equal((await underWay).code, 'UpstreamError')
  assert.equal((await ask(tokenOf(gone.id))).code, 'UnknownMount')
  assert.equal((await ask(tokenOf(kept.id))).status, 200)
  assert.match(JSON.stringify(warnings), /its access to them ends/)
})

test('a set is in force at the S3 proxy while the guest has not answered the one before', async (t) => {
  const { guest, mounts, tokenOf, ask } = await openMounts(t)
  const [first, second] = [mountAt('/mnt/first'), mountAt('/mnt/second')]
  await mounts.set({ revision: 1, mounts: [first, second] })
  guest.onSet = () => Promise.withResolvers<void>().promise

  for (const set of [
    { revision: 2, mounts: [first] },
    { revision: 3, mounts: [] },
  ])
    mounts.set(set).catch(() => {}) // As above.

  const isClosed = async ({ id }: HostMount) => (await ask(tokenOf(id)).catch(() => ({ code: 'cut' }))).code !== ''
  await until(async () => (await isClosed(first)) && (await isClosed(second)), 'both tokens are refused')
})

test('sets that wait for a guest are not collected: the newest is given to it, and is the outcome of the others', async (t) => {
  const { guest, mounts } = await openMounts(t, 60_000)
  const mount = mountAt('/mnt/data')
  const held = Promise.withResolvers<void>()
  guest.onSet = () => held.promise
  const first = mounts.set({ revision: 1, mounts: [mount] })
  await until(() => guest.sets.length === 1)

  const others = [1, 2, 2, 3, 4, 4].map((revision) => mounts.set({ revision, mounts: revision === 1 ? [mount] : [] }))
  held.resolve()

  assert.equal((await first).revision, 1)
  const outcomes = (await Promise.all(others)).slice(1)
  for (const { revision, removed } of outcomes) assert.deepEqual([revision, removed], [4, [{ id: mount.id }]])
  assert.deepEqual(
    guest.sets.map((set) => set.length),
    [1, 0],
  )
})

test('a set that arrives after a newer one lists nothing again, also if the newer one failed', async (t) => {
  const { guest, mounts } = await openMounts(t)
  const [kept, gone] = [mountAt('/mnt/kept'), mountAt('/mnt/gone')]
  const { channel } = guest.vmm
  guest.vmm.channel = () => Promise.reject(new Error('the guest is busy'))
  await assert.rejects(mounts.set({ revision: 2, mounts: [kept] }))
  guest.vmm.channel = channel

  const late = await mounts.set({ revision: 1, mounts: [kept, gone] })
  const { revision } = await mounts.set({ revision: 2, mounts: [kept] })

  assert.deepEqual([late.revision, late.mounts], [undefined, []])
  assert.equal(revision, 2)
  assert.deepEqual(
    guest.sets.map((set) => set.map(({ id }) => id)),
    [[kept.id]],
  )
})

test('a guest that answers has its access while it saves, and no longer', async (t) => {
  const { guest, mounts, tokenOf, ask } = await openMounts(t, 60_000)
  const mount = mountAt('/mnt/data')
  await mounts.set({ revision: 1, mounts: [mount] })
  const statuses: number[] = []
  guest.onSet = async () => void statuses.push((await ask(tokenOf(mount.id))).status)

  await mounts.set({ revision: 2, mounts: [] })

  assert.deepEqual(statuses, [200])
  await assert.rejects(ask(tokenOf(mount.id))) // The sandbox has no mount, and gets no connection.
})

test('connections of a sandbox without mounts are closed', async (t) => {
  const { mounts, tokenOf } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  await mounts.set({ revision: 1, mounts: [mount] })
  const socket = connect({ host: '127.0.0.1', port: proxy.port, localAddress: SANDBOX })
  socket.write(`HEAD / HTTP/1.1\r\nHost: disks\r\nAuthorization: Bearer ${tokenOf(mount.id)}\r\n\r\n`)
  const closed = Promise.withResolvers<void>()
  socket.on('error', () => {})
  socket.on('close', () => closed.resolve())
  await new Promise((resolve) => socket.once('data', resolve))

  await mounts.set({ revision: 2, mounts: [] })

  await closed.promise
})

test('a VM that no longer runs has no access', async (t) => {
  const { mounts, ended, tokenOf, ask } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  await mounts.set({ revision: 1, mounts: [mount] })
  const before = (await proxy.counts())!.mounts

  ended.abort()

  await until(async () => (await proxy.counts())!.mounts === before - 1)
  await assert.rejects(ask(tokenOf(mount.id)))
})

test('the status of before a resume or new credentials is not shown: only what was tried since', async (t) => {
  const { guest, mounts, tokenOf, ask } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  guest.reports = [{ id: mount.id, revision: 1, status: 'mounted' }] // Of before the resume.
  await mounts.set({ revision: 1, mounts: [mount] })
  assert.equal(statusOf(mounts, mount), 'pending')

  await ask(tokenOf(mount.id))
  await until(() => statusOf(mounts, mount) === 'mounted')

  guest.reports = [{ id: mount.id, revision: 2, status: 'mounted' }]
  await mounts.set({ revision: 2, mounts: [{ ...mount, revision: 2 }] })
  assert.equal(statusOf(mounts, mount), 'pending')
  onStoreRequest = (_, response) => void response.writeHead(403).end()
  await ask(tokenOf(mount.id))
  assert.equal(statusOf(mounts, mount), 'pending')
  onStoreRequest = (_, response) => void response.end()
  await ask(tokenOf(mount.id))
  await until(() => statusOf(mounts, mount) === 'mounted')
})

test('a failure of before is not shown either, until the store has refused again', async (t) => {
  const { guest, mounts, tokenOf, ask } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  guest.reports = [{ id: mount.id, revision: 1, status: 'failed', mount_error: 'refused' }]
  await mounts.set({ revision: 1, mounts: [mount] })
  assert.equal(statusOf(mounts, mount), 'pending')

  onStoreRequest = (_, response) => void response.writeHead(403).end()
  await ask(tokenOf(mount.id))

  await until(() => statusOf(mounts, mount) === 'failed')
  onStoreRequest = (_, response) => void response.end()
})

test('what a pause could not save is returned, and that a guest which does not answer said nothing', async (t) => {
  const { guest, mounts } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  const unsaved = { files: 2, bytes: 20, names: ['a', 'b'] }
  await mounts.set({ revision: 1, mounts: [mount] })

  guest.reports = [{ id: mount.id, revision: 1, status: 'mounted', unsaved }]
  assert.deepEqual(await mounts.flush(1_000), [{ id: mount.id, unsaved }])
  guest.reports = [{ id: mount.id, revision: 1, status: 'mounted', unsaved: { files: 0, bytes: 0, names: [] } }]
  assert.deepEqual(await mounts.flush(1_000), [])
  guest.onFlush = () => Promise.withResolvers<void>().promise
  assert.deepEqual(await mounts.flush(10), [{ id: mount.id }])
})

test('a guest that answers without saying what is unsaved may have unsaved files, except on a disk that is read-only', async (t) => {
  const { guest, mounts } = await openMounts(t)
  const [silent, absent, readOnly] = [
    mountAt('/mnt/silent'),
    mountAt('/mnt/absent'),
    { ...mountAt('/mnt/read'), read_only: true },
  ]
  await mounts.set({ revision: 1, mounts: [silent, absent, readOnly] })

  guest.reports = [silent, readOnly].map(({ id }) => ({ id, revision: 1, status: 'pending' }))

  assert.deepEqual(await mounts.flush(1_000), [{ id: silent.id }, { id: absent.id }])
})

test('a pause saves the files of a guest that continues and has not answered the set of its resume yet', async (t) => {
  const { guest, mounts } = await openMounts(t)
  const [known, silent] = [mountAt('/mnt/known', 2), mountAt('/mnt/silent', 2)]
  const unsaved = { files: 1, bytes: 10, names: ['a'] }
  guest.reports = [{ id: known.id, revision: 1, status: 'mounted', unsaved }]
  guest.onSet = () => Promise.withResolvers<void>().promise
  let flushes = 0
  guest.onFlush = () => void flushes++
  mounts.armInBackground({ revision: 1, mounts: [known, silent] })
  mounts.setInBackground({ revision: 1, mounts: [known, silent] })

  const left = await mounts.flush(1_000)

  assert.deepEqual(left, [{ id: known.id, unsaved }, { id: silent.id }])
  assert.equal(flushes, 1)
})

test('a pause saves the files of a guest whose host agent was restarted and has not got its mounts yet', async (t) => {
  const { guest, mounts } = await openMounts(t, 300, true)
  const [unsaved, saved, silent] = [newId('mount'), newId('mount'), newId('mount')]
  const left = { files: 1, bytes: 10, names: ['a'] }
  guest.reports = [
    { id: unsaved, revision: 3, status: 'mounted', unsaved: left },
    { id: saved, revision: 3, status: 'mounted', unsaved: { files: 0, bytes: 0, names: [] } },
    { id: silent, revision: 3, status: 'pending' },
    { id: 'not an id', revision: 3, status: 'pending' },
  ]

  assert.deepEqual(await mounts.flush(1_000), [{ id: unsaved, unsaved: left }, { id: silent }])

  await mounts.set({ revision: 4, mounts: [] })
  assert.deepEqual(await mounts.flush(1_000), [])
})

test('a guest without disks is not asked before its pause', async (t) => {
  const { guest, mounts } = await openMounts(t)
  guest.vmm.channel = () => assert.fail('the guest was asked')

  assert.deepEqual(await mounts.flush(1_000), [])
})

test('what a detached disk could not save is returned although the connection to the guest broke meanwhile', async (t) => {
  const { guest, mounts } = await openMounts(t)
  const mount = mountAt('/mnt/data')
  await mounts.set({ revision: 1, mounts: [mount] })
  guest.removed = [{ id: mount.id, unsaved_files: 2 }]
  guest.onSet = () => (guest.sets.length === 2 ? 'cut' : undefined)

  const { removed } = await mounts.set({ revision: 2, mounts: [] })

  assert.equal(removed.length, 1)
  assert.match(removed[0]!.warning!, /^changes of 2 files could not be saved/)
  assert.equal(guest.sets.length, 3)
})

test('what a guest says again about disks detached earlier is returned once, and nothing about those attached', async (t) => {
  const { guest, mounts } = await openMounts(t, 300, true)
  const [attached, saved, unsaved] = [mountAt('/mnt/data'), newId('mount'), newId('mount')]
  guest.removed = [
    { id: unsaved, unsaved_files: 0 },
    { id: unsaved, unsaved_files: 1 },
    { id: saved, unsaved_files: 0 },
    { id: attached.id, unsaved_files: 1 },
    { id: 'not an id', unsaved_files: 1 },
  ]

  const { removed } = await mounts.set({ revision: 2, mounts: [attached] })

  assert.deepEqual(
    removed.map(({ id }) => id),
    [unsaved],
  )
  assert.match(removed[0]!.warning!, /^changes of 1 file could not be saved/)
})
