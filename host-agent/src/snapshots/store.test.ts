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

test('the newest two generations are retained, and an object is deleted with the last that refers to it', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m1', 's1', 'd1']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd1', 'd2']))
  await store.deleteOld(id)
  assert.deepEqual(objects(root), ['d1', 'd2', 'm1', 'm2', 's1', 's2'])

  await store.add(await makeManifest(store, id, 3, ['m3', 's3', 'd1', 'd3']))
  await store.deleteOld(id)

  assert.deepEqual(
    store.list(id).map((one) => one.generation),
    [3, 2],
  )
  assert.deepEqual(objects(root), ['d1', 'd2', 'd3', 'm2', 'm3', 's2', 's3'])
})

test('a fork shares every object, and deleting the source leaves it intact', async (t) => {
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

test('a layer that a VM reads is deleted only after the VM releases it', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  store.retain('vmm', ['d'])

  await store.deleteAll(id)
  assert.deepEqual(objects(root), ['d'])
  await store.release('vmm')
  assert.deepEqual(objects(root), [])
})

test('after a restart the store has the same generations and collects unreferenced files', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await writeFile(store.fileOf('left-over'), 'left by a killed process')

  const again = await openSnapshotStore(root)
  const collected = await again.collect()

  assert.deepEqual(again.findNewestIntact(id)?.manifest, store.findNewestIntact(id)?.manifest)
  assert.deepEqual(again.findChecksums('d'), { id: 'd', bytes: 1, crcs: [crc32('d')] })
  assert.equal(collected.removed, 1)
  assert.deepEqual(objects(root), ['d', 'm', 's'])
})

test('a truncated, changed or foreign manifest is damaged, and the generation before is the newest', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd']))
  const file = path.join(root, 'sandboxes', id, '00000002.json')
  const original = await readFile(file, 'utf8')
  const damages: [() => Promise<void>, RegExp][] = [
    [() => truncate(file, 40), /truncated/],
    [() => truncate(file, 0), /truncated/],
    [() => writeFile(file, original.replace('"disk_mib":1024', '"disk_mib":1025')), /does not match/],
    [() => appendFile(file, ' '), /truncated/],
    [async () => writeFile(file, await readFile(path.join(root, 'sandboxes', id, '00000001.json'))), /of generation 1/],
  ]
  for (const [damage, reason] of damages) {
    await writeFile(file, original)
    await damage()

    const again = await openSnapshotStore(root)

    assert.match(again.find(id, 2)?.damage ?? 'none', reason)
    assert.equal(again.findNewestIntact(id)?.generation, 1)
    assert.equal(again.nextGeneration(id), 3)
  }
})

test('a generation marked as damaged is not used again, not even after a restart', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd']))
  await store.add(await makeManifest(store, id, 2, ['m2', 's2', 'd']))

  await store.markDamaged(id, 2, 'its disk is damaged')

  for (const one of [store, await openSnapshotStore(root)]) {
    assert.equal(one.findNewestIntact(id)?.generation, 1)
    assert.equal(one.nextGeneration(id), 3)
    assert.ok(existsSync(one.fileOf('m2')))
  }
})

test('a fork is intact if its source is compacted and deleted meanwhile', async (t) => {
  const { root, store } = await makeStore(t)
  const [source, child] = [sandboxId(1), sandboxId(2)]
  await store.add(await makeManifest(store, source, 1, ['m', 's', 'd1', 'd2']))
  const old = store.findNewestIntact(source)!.manifest

  const reservation = store.reserve(['m', 's', 'd1', 'd2'])
  await writeFile(store.fileOf('merged'), '')
  await store.replace(old, { ...old, disk: [{ id: 'merged', bytes: 0, crcs: [] }] })
  await store.deleteAll(source)
  await store.add({ ...old, sandbox: child, generation: 1 })
  await reservation.release()

  assert.deepEqual(objects(root), ['d1', 'd2', 'm', 's'])
})

test('a generation with a missing object is not added', async (t) => {
  const { store } = await makeStore(t)
  const manifest = await makeManifest(store, sandboxId(1), 1, ['m', 's', 'd'])
  await rm(store.fileOf('d'))

  await assert.rejects(store.add(manifest), /object d is missing/)
  assert.equal(store.findNewestIntact(sandboxId(1)), undefined)
})

test('replacing the objects of a generation deletes the old ones', async (t) => {
  const { root, store } = await makeStore(t)
  const id = sandboxId(1)
  await store.add(await makeManifest(store, id, 1, ['m', 's', 'd1', 'd2']))
  const old = store.findNewestIntact(id)!.manifest
  await writeFile(store.fileOf('merged'), '')
  const merged = { ...old, disk: [{ id: 'merged', bytes: 0, crcs: [] }] }

  assert.equal(await store.replace(old, merged), true)
  assert.equal(await store.replace(old, merged), false)

  assert.deepEqual(objects(root), ['m', 'merged', 's'])
  assert.deepEqual((await openSnapshotStore(root)).findNewestIntact(id)?.manifest, merged)
})
