import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { until } from '@warren/kit/testing/until'
import { runCommand } from '../run-command.ts'
import { buildOnce, findNewer, listBuilding, listFailed, openFolders, place } from './build.ts'
import { buildingFolder, pathOf, type Store } from './layout.ts'
import { tryLock } from './lock.ts'
import { IS_ROOT, makeStore } from './testing.ts'

const KEY = 'thing:1'
const absent = async () => undefined

/** A build of a folder with one file, which ends up in roots/. */
const buildThing = (store: Store, content: string, find: () => Promise<string | undefined> = absent) =>
  buildOnce(store, KEY, {}, find, async ({ folder }) => {
    await mkdir(path.join(folder, 'thing'))
    await writeFile(path.join(folder, 'thing', 'file'), content)
    await place(path.join(folder, 'thing'), pathOf(store, 'roots', 'thing'))
    return content
  })

const readThing = (store: Store) => readFile(pathOf(store, 'roots', 'thing', 'file'), 'utf8').catch(() => undefined)

test('two who want the same thing at once: one builds it, both get it', async (t) => {
  const store = await makeStore(t)
  const find = () => readThing(store)

  const results = await Promise.all(['one', 'two', 'three'].map((content) => buildThing(store, content, find)))

  assert.equal(new Set(results).size, 1)
  assert.deepEqual(await readdir(pathOf(store, 'building')), [])
})

test('a build that fails leaves its reason and nothing else; the next one forgets the reason', async (t) => {
  const store = await makeStore(t)

  const failing = buildOnce(store, KEY, {}, absent, async ({ folder }) => {
    await writeFile(path.join(folder, 'half'), 'half')
    throw new Error('no space\nleft')
  })
  await assert.rejects(failing, /could not build thing:1/)

  assert.deepEqual([...(await listFailed(store))], [[KEY, 'no space left']])
  assert.deepEqual(await readdir(pathOf(store, 'building')), [])
  await buildThing(store, 'whole')
  assert.equal((await listFailed(store)).size, 0)
})

test('a build that is called off did not fail', async (t) => {
  const store = await makeStore(t)
  const stopping = new AbortController()

  const building = buildOnce(store, KEY, { signal: stopping.signal }, absent, async ({ signal }) => {
    stopping.abort()
    signal?.throwIfAborted()
  })

  await assert.rejects(building)
  assert.equal((await listFailed(store)).size, 0)
})

test('others see that something is being built, and how far it is', async (t) => {
  const store = await makeStore(t)
  const { promise, resolve } = Promise.withResolvers<void>()

  const building = buildOnce(store, KEY, {}, absent, async ({ progress }) => {
    progress('half done')
    await promise
  })
  await until(async () => (await listBuilding(store)).get(KEY) === 'half done', 'the progress is reported')
  resolve()
  await building

  assert.equal((await listBuilding(store)).size, 0)
})

test('building anew takes no answer of before, but one that another made meanwhile', async () => {
  let digest = 'old'
  const find = await findNewer(async () => ({ digest }))

  assert.equal(await find(), undefined)
  digest = 'new'
  assert.deepEqual(await find(), { digest: 'new' })
})

test('kill -9 in the middle of a build: its processes end, nothing half made is left, the next build works', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: builds run in namespaces of their own')
  const store = await makeStore(t)
  const module = (name: string) => JSON.stringify(pathToFileURL(path.join(import.meta.dirname, name)).href)
  const mark = `${process.pid}.${Date.now() % 1e6}`
  const program = `
    import { buildOnce } from ${module('build.ts')}
    import { runInBuild } from ${module('command.ts')}
    const store = { cacheDir: ${JSON.stringify(store.cacheDir)}, log: { info() {}, warn() {} } }
    await buildOnce(store, ${JSON.stringify(KEY)}, {}, async () => undefined, (build) =>
      runInBuild(build, 'sh', ['-c', 'mkdir "$1/thing"; echo half >"$1/thing/file"; sleep ${mark}9999 & wait', 'sh', build.folder], { what: 'waiting' }))
  `
  const killing = new AbortController()
  const killed = runCommand(process.execPath, ['--input-type=module', '--eval', program], { signal: killing.signal })
  const half = path.join(buildingFolder(store, KEY), 'thing', 'file')
  await Promise.race([until(() => existsSync(half), 'the build is half way'), killed])
  await until(() => isRunning(`sleep ${mark}9999`), 'its last process runs')

  killing.abort() // SIGKILL to the process, not to what it started
  await assert.rejects(killed)

  await until(async () => !(await isRunning(`sleep ${mark}9999`)), 'its processes are gone')
  assert.ok(existsSync(half))
  assert.equal((await listBuilding(store)).size, 0)
  await openFolders(store)
  assert.deepEqual(await readdir(pathOf(store, 'building')), [])
  assert.equal(await buildThing(store, 'whole'), 'whole')
  assert.equal(await readThing(store), 'whole')
})

test('a start leaves a build alone that another process is at', async (t) => {
  const store = await makeStore(t)
  const held = await tryLock(pathOf(store, 'locks', KEY))
  await mkdir(buildingFolder(store, KEY))

  await openFolders(store)

  assert.equal((await readdir(pathOf(store, 'building'))).length, 1)
  await held?.release()
})

test('what is under construction is closed to other users', async (t) => {
  const store = await makeStore(t)

  assert.equal((await stat(pathOf(store, 'building'))).mode & 0o777, 0o700)
})

async function isRunning(commandLine: string): Promise<boolean> {
  const pids = (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))
  const lines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')))
  return lines.some((line) => line.split('\0').join(' ').trim() === commandLine)
}
