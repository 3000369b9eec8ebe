import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { existsSync, readdirSync } from 'node:fs'
import { readFile, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import fc from 'fast-check'
import type { Deps } from '../../deps.ts'
import { makeFolder } from '../../images/testing.ts'
import { runCommandOrThrow } from '../../run-command.ts'
import type { StoredObject } from '../../snapshots/manifest.ts'
import { openSnapshotStore } from '../../snapshots/store.ts'
import { makeManifest } from '../../snapshots/testing.ts'
import { startWorkerPool } from '../../snapshots/worker-pool.ts'
import { chooseMerge, createCompactor } from './compact.ts'
import { createOverlay } from './qcow2/overlay.ts'

const SANDBOX = `sb-${'0'.repeat(26)}`

test('layers of similar size are merged, a large one below small ones is not', () => {
  assert.equal(chooseMerge([]), 0)
  assert.equal(chooseMerge([5]), 1)
  assert.equal(chooseMerge([1, 1]), 0)
  assert.equal(chooseMerge([100, 1]), 2)
  assert.equal(chooseMerge([100, 2, 1]), 1)
  assert.equal(chooseMerge([100, 40, 20, 20]), 0)
})

test('for any sizes, the chain stays short and no byte is rewritten often', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 1, max: 1000 }), { maxLength: 300 }), (pauses) => {
      let chain: number[] = []
      let [written, rewritten] = [0, 0]
      for (const bytes of pauses) {
        chain.push(bytes)
        written += bytes
        const from = chooseMerge(chain)
        const merged = chain.slice(from).reduce((sum, size) => sum + size, 0)
        if (from >= chain.length) continue
        rewritten += merged
        chain = [...chain.slice(0, from), merged]
      }
      assert.ok(chain.length <= 1 + Math.log(Math.max(written, 1)) / Math.log(3) + 1, `${chain.length}`)
      assert.ok(rewritten <= written * 12, `${rewritten} of ${written}`)
    }),
  )
})

/** A store with a generation of two disk layers, and a compactor for it. */
async function makeSaved(t: TestContext) {
  const below = path.join(await makeFolder(t), 'below.raw')
  await writeFile(below, '')
  await truncate(below, 16 * 1024 * 1024)
  const store = await openSnapshotStore(await makeFolder(t))
  const workers = startWorkerPool(1)
  t.after(() => workers.close())
  const layers: StoredObject[] = []
  for (const [n, id] of ['one', 'two'].entries()) {
    const file = store.fileOf(id)
    await createOverlay(file, { sizeMib: 16, backing: { file: below, format: 'raw' } })
    await runCommandOrThrow('qemu-io', ['-c', `write -P ${n + 1} ${n}M 64k`, file])
    layers.push({ id, ...(await workers.run('seal', { file })) })
  }
  const manifest = { ...(await makeManifest(store, SANDBOX, 1, ['memory', 'state'])), disk: layers }
  await store.add(manifest)
  const warnings: string[] = []
  const log = { warn: ({ err }: { err: Error }) => warnings.push(err.message) }
  const volume = { checkFloor: () => {} }
  const deps = { snapshots: store, workers, log, volume, stopping: new AbortController().signal } as unknown as Deps
  const compactor = createCompactor(() => deps)
  const merge = async () => {
    compactor.add(SANDBOX)
    await compactor.close()
    return store.findNewestIntact(SANDBOX)!.manifest.disk.map((layer) => layer.id)
  }
  return { store, merge, warnings }
}

const noQemu = spawnSync('qemu-io', ['--version']).status !== 0

test('two small layers are merged into one, and the old ones are deleted', {
  skip: noQemu && 'no qemu-io here',
}, async (t) => {
  const { store, merge, warnings } = await makeSaved(t)

  const [merged, ...rest] = await merge()

  assert.deepEqual([rest, warnings], [[], []])
  assert.match(merged!, /^merged-/)
  assert.equal(existsSync(store.fileOf('one')), false)
})

test('a damaged layer is not merged', { skip: noQemu && 'no qemu-io here' }, async (t) => {
  const { store, merge, warnings } = await makeSaved(t)
  const file = store.fileOf('one')
  const bytes = await readFile(file)
  bytes[bytes.length - 1]! ^= 1
  await writeFile(file, bytes)

  assert.deepEqual(await merge(), ['one', 'two'])
  assert.match(warnings.join(), /one is damaged: the checksum of MiB \d does not match/)
  assert.deepEqual(readdirSync(path.dirname(file)).sort(), ['memory', 'one', 'state', 'two'])
})
