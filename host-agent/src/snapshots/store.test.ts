import assert from 'node:assert/strict'
import { existsSync, readdirSync } from 'node:fs'
import { appendFile, mkdtemp, readFile, rm, truncate, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { crc32 } from 'node:zlib'
import { openSnapshotStore } from './store.ts'
import { makeManifest } from './testing.ts'

type TestContext = { after(end: () => Promise<void>): void }

async function makeStore(t: TestContext) {
  const root = await mkdtemp(path.join(tmpdir(), 'warren-store-'))
  t.after(() => rm(root, { recursive: true }))
  return { root, store: await openSnapshotStore(root) }
}

const sandboxId = (n: number) => `sb-${String(n).padStart(26, '0')}`
const objects = (root: string) => readdirSync(path.join(root, 'objects')).sort()

test('the newest two generations are kept, and an object goes with the last that names it', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m1', 's1', 'd1']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd1', 'd2']))
  await store.dropOld(id)
  assert.deepEqual(objects(root), ['d1', 'd2', 'm1', 'm2', 's1', 's2'])

  await store.add(await makeManifest(store, id, 3, ['m3', 's3', 'd1', 'd3']))
  await store.dropOld(id)

  assert.deepEqual(
    store.list(id).map((one) => one.generation),
    [3, 2],
  )
  assert.deepEqual(objects(root), ['d1', 'd2', 'd3', 'm2', 'm3', 's2', 's3'])
})

test('a fork shares every object, and neither is harmed by the end of the other', async (t) => {
  const { root, store } = await makeStore(t)
  const [source, child] = [sandboxId(1), sandboxId(2)]
  const manifest = await makeManifest(store, source, 5, ['m', 's', 'd'])
  await store.add(manifest)
  await store.add({ ...manifest, sandbox: child, generation: 1 })

  await store.deleteAll(source)
  assert.deepEqual(objects(root), ['d', 'm', 's'])
  await store.deleteAll(child)
  assert.deepEqual(objects(root), [])
})

test('what a body reads stays until it ends', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  store.hold('body', ['d'])

  await store.deleteAll(id)
  assert.deepEqual(objects(root), ['d'])
  await store.release('body')
  assert.deepEqual(objects(root), [])
})

test('opened again it knows the same, and removes what nobody names', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await writeFile(store.fileOf('left-over'), 'of a killed process')

  const again = await openSnapshotStore(root)
  const collected = await again.collect()

  assert.deepEqual(again.newest(id)?.manifest, store.newest(id)?.manifest)
  assert.deepEqual(again.sumsOf('d'), { id: 'd', bytes: 1, crcs: [crc32('d')] })
  assert.equal(collected.removed, 1)
  assert.deepEqual(objects(root), ['d', 'm', 's'])
})

test('a manifest that was cut, changed or belongs to another is damage, and the one before is the newest', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd']))
  const file = path.join(root, 'sandboxes', id, '00000002.json')
  const whole = await readFile(file, 'utf8')
  const harms: [() => Promise<void>, RegExp][] = [
    [() => truncate(file, 40), /cut off/],
    [() => truncate(file, 0), /cut off/],
    [() => writeFile(file, whole.replace('"disk_mib":1024', '"disk_mib":1025')), /has changed/],
    [() => appendFile(file, ' '), /cut off/],
    [async () => writeFile(file, await readFile(path.join(root, 'sandboxes', id, '00000001.json'))), /of generation 1/],
  ]
  for (const [harm, reason] of harms) {
    await writeFile(file, whole)
    await harm()

    const again = await openSnapshotStore(root)

    assert.match(again.find(id, 2)?.damage ?? 'none', reason)
    assert.equal(again.newest(id)?.generation, 1)
    assert.equal(again.nextNumber(id), 3)
  }
})

test('a generation that is set aside is not taken again, also after a restart', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd']))

  await store.setAside(id, 2, 'its disk has changed')

  for (const one of [store, await openSnapshotStore(root)]) {
    assert.equal(one.newest(id)?.generation, 1)
    assert.equal(one.nextNumber(id), 3)
    assert.ok(existsSync(one.fileOf('m2')))
  }
})

test('a child that is forked while its source is merged or deleted is whole', async (t) => {
  const { root, store } = await makeStore(t)
  const [source, child] = [sandboxId(1), sandboxId(2)]
  await store.add(await makeManifest(store, source, 1, ['m', 's', 'd1', 'd2']))
  const old = store.newest(source)!.manifest

  const reservation = store.reserve(['m', 's', 'd1', 'd2'])
  await writeFile(store.fileOf('merged'), '')
  await store.replace(old, { ...old, disk: [{ id: 'merged', bytes: 0, crcs: [] }] })
  await store.deleteAll(source)
  await store.add({ ...old, sandbox: child, generation: 1 })
  await reservation.release()

  assert.deepEqual(objects(root), ['d1', 'd2', 'm', 's'])
})

test('a generation whose object went missing is not acknowledged', async (t) => {
  const { store } = await makeStore(t)
  const manifest = await makeManifest(store, sandboxId(1), 1, ['m', 's', 'd'])
  await rm(store.fileOf('d'))

  await assert.rejects(store.add(manifest), /d went missing/)
  assert.equal(store.newest(sandboxId(1)), undefined)
})

test('a generation said with fewer objects frees the others', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd1', 'd2']))
  const old = store.newest(id)!.manifest
  await writeFile(store.fileOf('merged'), '')
  const merged = { ...old, disk: [{ id: 'merged', bytes: 0, crcs: [] }] }

  assert.equal(await store.replace(old, merged), true)
  assert.equal(await store.replace(old, merged), false)

  assert.deepEqual(objects(root), ['m', 'merged', 's'])
  assert.deepEqual((await openSnapshotStore(root)).newest(id)?.manifest, merged)
})
