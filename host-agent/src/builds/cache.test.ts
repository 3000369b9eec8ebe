import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Base } from '../bases/base.ts'
import { openSnapshotStore } from '../snapshots/store.ts'
import { keyOfResult, openStepCache } from './cache.ts'

const BASE = { key: 'base', id: 'build-1' } as Base
const KEYS = ['a', 'b', 'c']
const MIB = 1024 ** 2

async function open(t: TestContext, maxBytes = 100 * MIB) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-build-cache-'))
  t.after(() => rm(folder, { recursive: true }))
  const openAll = async () => {
    const snapshots = await openSnapshotStore(path.join(folder, 'snapshots'))
    return { snapshots, cache: await openStepCache(path.join(folder, 'cache'), snapshots, maxBytes) }
  }
  const { snapshots, cache } = await openAll()
  /** The disk after this step, made by a build with this name. */
  const add = async (owner: string, key: string, usedMs: number, build = owner) => {
    const layers = KEYS.slice(0, KEYS.indexOf(key) + 1).map((one) => ({ object: `${build}-${one}`, bytes: MIB }))
    for (const { object } of layers) await writeFile(snapshots.fileOf(object), object)
    await cache.addDisk(owner, key, { layers, base: { key: BASE.key, id: BASE.id }, used_ms: usedMs })
  }
  const layersOf = async (owner: string, base = BASE, from = cache) => {
    const { layers, release } = await from.takePrefix(owner, KEYS, base, 1_000)
    await release()
    return layers.map(({ object }) => object)
  }
  return { folder, snapshots, cache, add, layersOf, openAll }
}

test('the longest run of known steps is found, for the user that made them and on the same base', async (t) => {
  const { add, layersOf } = await open(t)
  for (const key of ['a', 'b']) await add('usr_1', key, 1)
  await add('usr_2', 'b', 1)

  assert.deepEqual(await layersOf('usr_1'), ['usr_1-a', 'usr_1-b'])
  assert.deepEqual(await layersOf('usr_2'), ['usr_2-a', 'usr_2-b'])
  assert.deepEqual(await layersOf('usr_3'), [])
  assert.deepEqual(await layersOf('usr_1', { ...BASE, id: 'build-2' }), [])
})

test('layers stay in the store while the cache names them, also after a restart', async (t) => {
  const { add, layersOf, openAll, folder } = await open(t)
  await add('usr_1', 'a', 1)
  await writeFile(path.join(folder, 'cache', 'usr_1', '.b.json.1234'), '{"version":1')

  const { snapshots, cache } = await openAll()
  await writeFile(snapshots.fileOf('stray'), '')
  assert.deepEqual((await snapshots.collect()).removed, 1)

  assert.deepEqual(await layersOf('usr_1', BASE, cache), ['usr_1-a'])
  assert.deepEqual(await readdir(path.join(folder, 'cache', 'usr_1')), ['a.json'])
})

test('what was not used for longest is pruned first, but nothing that a build uses', async (t) => {
  const { snapshots, cache, add } = await open(t, 2 * MIB)
  for (const key of KEYS) await add('usr_1', key, 5)
  await add('usr_2', 'a', 10)
  const used = await cache.takePrefix('usr_1', ['a'], BASE, 0)

  assert.deepEqual(await cache.prune(100), { removed: 2, bytes: 2 * MIB })
  assert.deepEqual(
    ['usr_1-a', 'usr_1-b', 'usr_1-c', 'usr_2-a'].map((object) => existsSync(snapshots.fileOf(object))),
    [true, false, false, true],
  )

  await used.release()
  await add('usr_2', 'b', 20)
  assert.deepEqual(await cache.prune(100), { removed: 1, bytes: MIB })
  assert.equal(existsSync(snapshots.fileOf('usr_1-a')), false)
})

test('layers of two builds of the same steps are never mixed', async (t) => {
  const { snapshots, add, layersOf } = await open(t)
  for (const key of KEYS) await add('usr_1', key, 1, 'first')
  for (const key of ['a', 'b']) await add('usr_1', key, 2, 'second')

  assert.deepEqual(await layersOf('usr_1'), ['first-a', 'first-b', 'first-c'])
  assert.ok(existsSync(snapshots.fileOf('first-a')))

  await add('usr_1', 'c', 3, 'second')
  assert.deepEqual(await layersOf('usr_1'), ['second-a', 'second-b', 'second-c'])
  assert.equal(existsSync(snapshots.fileOf('first-a')), false)
})

test('layers that a build uses stay when another build replaces their entry', async (t) => {
  const { snapshots, cache, add } = await open(t)
  await add('usr_1', 'a', 1, 'first')
  const used = await cache.takePrefix('usr_1', ['a'], BASE, 0)

  await add('usr_1', 'a', 2, 'second')
  assert.ok(existsSync(snapshots.fileOf('first-a')))
  await used.release()
  assert.equal(existsSync(snapshots.fileOf('first-a')), false)
})

test('an entry that is replaced while others are pruned stays', async (t) => {
  const { cache, add, layersOf } = await open(t, 0)
  for (const key of ['a', 'b']) await add('usr_1', key, 1, 'first')

  const pruning = cache.prune(100)
  await add('usr_1', 'a', 2, 'second')
  await pruning

  assert.deepEqual(await layersOf('usr_1'), ['second-a'])
})

test('a file that is not part of the cache does not keep it from opening', async (t) => {
  const { folder, openAll } = await open(t)
  await writeFile(path.join(folder, 'cache', 'README'), '')

  await openAll()
})

test('layers of a base that is gone are removed', async (t) => {
  const { snapshots, cache, add } = await open(t)
  await add('usr_1', 'a', 1)

  await cache.forgetBases(async () => true)
  assert.ok(existsSync(snapshots.fileOf('usr_1-a')))
  await cache.forgetBases(async () => false)
  assert.equal(existsSync(snapshots.fileOf('usr_1-a')), false)
})

test('a result is known by its last step and its variables', async (t) => {
  const { cache } = await open(t)
  const key = keyOfResult('c', { A: '1', B: '2' })
  await cache.addResult('usr_1', key, { digest: 'sha256:1', size_bytes: 5, used_ms: 1 })

  assert.equal(cache.findResult('usr_1', keyOfResult('c', { B: '2', A: '1' }))?.digest, 'sha256:1')
  assert.equal(cache.findResult('usr_1', keyOfResult('c', { A: '1' })), undefined)
  assert.equal(cache.findResult('usr_2', key), undefined)
})
