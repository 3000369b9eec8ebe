import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { chmod, mkdir, mkdtemp, readdir, readFile, rename, rm, stat, utimes, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
import { importSharedBase, lockSharedBase, pruneSharedBases, publishSharedBase } from './shared.ts'

const KEY = 'a1b2'
const FILES = ['root.ext4', 'disk.qcow2', 'ram', 'state', 'sums.json', 'manifest.json']

/** An instance with its own data directory, and the base if `isBuilt`. */
async function makeInstance(t: TestContext, sharedBases: string | undefined, { isBuilt }: { isBuilt: boolean }) {
  const dataDir = await makeFolder(t)
  const folder = path.join(dataDir, 'bases', KEY)
  await mkdir(isBuilt ? folder : path.dirname(folder), { recursive: true })
  for (const name of isBuilt ? [...FILES, 'console.log'] : []) {
    await writeFile(path.join(folder, name), name, { mode: 0o444 })
  }
  const warnings: string[] = []
  const log = { info: () => {}, warn: (_: object, text: string) => warnings.push(text) }
  const deps = { config: { dataDir, sharedBases }, log, stopping: new AbortController().signal } as unknown as Deps
  return { deps, folder, warnings }
}

test('what one data directory has built, another one links, without its logs', async (t) => {
  const shared = await makeFolder(t)
  const one = await makeInstance(t, shared, { isBuilt: true })
  const other = await makeInstance(t, shared, { isBuilt: false })

  assert.equal(await importSharedBase(other.deps, KEY), false)
  await publishSharedBase(one.deps, KEY)
  assert.equal(await importSharedBase(other.deps, KEY), true)

  assert.deepEqual((await readdir(other.folder)).sort(), [...FILES].sort())
  assert.equal(await readFile(path.join(other.folder, 'ram'), 'utf8'), 'ram')
  const inodes = await Promise.all([one, other].map(({ folder }) => stat(path.join(folder, 'ram'))))
  assert.equal(inodes[0]!.ino, inodes[1]!.ino)
  assert.deepEqual([...one.warnings, ...other.warnings], [])
})

test('nothing is shared without a folder for it', async (t) => {
  const { deps, folder } = await makeInstance(t, undefined, { isBuilt: true })

  await publishSharedBase(deps, KEY)

  assert.equal(await importSharedBase(deps, KEY), false)
  assert.equal(await lockSharedBase(deps, KEY), undefined)
  assert.ok(existsSync(folder))
})

test('a shared base that others could have written, or that is incomplete, is not used', async (t) => {
  const shared = await makeFolder(t)
  const one = await makeInstance(t, shared, { isBuilt: true })
  const other = await makeInstance(t, shared, { isBuilt: false })
  await publishSharedBase(one.deps, KEY)
  const [name] = (await readdir(shared)).filter((entry) => entry !== 'locks')

  await chmod(path.join(shared, name!), 0o777)

  assert.equal(await importSharedBase(other.deps, KEY), false)
  assert.deepEqual(await readdir(path.dirname(other.folder)), [])
})

test('a second instance waits for the one that builds the same base', async (t) => {
  const shared = await makeFolder(t)
  const one = await makeInstance(t, shared, { isBuilt: false })
  const order: string[] = []

  const first = await lockSharedBase(one.deps, KEY)
  const second = lockSharedBase(one.deps, KEY).then((lock) => {
    order.push('second')
    return lock
  })
  order.push('first')
  await first!.release()

  await (await second)!.release()
  assert.deepEqual(order, ['first', 'second'])
})

test('a shared base is removed when it is superseded and was not used for a day', async (t) => {
  const shared = await makeFolder(t)
  for (const name of ['old', 'current', 'new']) await mkdir(path.join(shared, name))
  const longAgo = new Date(Date.now() - 25 * 60 * 60_000)
  for (const name of ['old', 'current']) await utimes(path.join(shared, name), longAgo, longAgo)
  const { deps } = await makeInstance(t, shared, { isBuilt: false })

  const removed = await pruneSharedBases(deps, async (folder) => path.basename(folder) === 'current')

  assert.deepEqual(removed, ['old'])
  assert.deepEqual((await readdir(shared)).sort(), ['current', 'new'])
})

test('without access to the folder, bases are not shared, and creates do not fail', async (t) => {
  const file = path.join(await makeFolder(t), 'file')
  await writeFile(file, '')
  const { deps, warnings } = await makeInstance(t, path.join(file, 'bases'), { isBuilt: true })

  assert.equal(await lockSharedBase(deps, KEY), undefined)

  assert.deepEqual(warnings, ['failed to lock a shared base: it is not shared'])
})

test('a base on another file system is copied', async (t) => {
  const shared = await mkdtemp('/dev/shm/warren-bases-')
  t.after(() => rm(shared, { recursive: true }))
  const one = await makeInstance(t, shared, { isBuilt: true })
  const other = await makeInstance(t, shared, { isBuilt: false })

  await publishSharedBase(one.deps, KEY)

  assert.equal(await importSharedBase(other.deps, KEY), true)
  for (const name of FILES) assert.equal(await readFile(path.join(other.folder, name), 'utf8'), name)
  assert.equal((await stat(path.join(other.folder, 'ram'))).mode & 0o777, 0o444)
  assert.deepEqual([...one.warnings, ...other.warnings], [])
})

test('an incomplete publication of a killed host agent is replaced', async (t) => {
  const shared = await makeFolder(t)
  const one = await makeInstance(t, shared, { isBuilt: true })
  const other = await makeInstance(t, shared, { isBuilt: false })
  await publishSharedBase(one.deps, KEY)
  const [name] = await readdir(shared)
  await rename(path.join(shared, name!), path.join(shared, `${name}.new`))
  await rm(path.join(shared, `${name}.new`, 'manifest.json'))

  assert.equal(await importSharedBase(other.deps, KEY), false)
  await publishSharedBase(one.deps, KEY)

  assert.equal(await importSharedBase(other.deps, KEY), true)
  assert.deepEqual(await readdir(shared), [name])
})
