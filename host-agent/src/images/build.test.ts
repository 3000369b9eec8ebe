import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { pathToFileURL } from 'node:url'
import { until } from '@warren/kit/testing/until'
import { runCommand } from '../run-command.ts'
import { buildOnce, findNewer, listBuilding, listFailed, moveIntoPlace, prepareFolders } from './build.ts'
import { buildingFolder, type ImageCache, pathOf } from './layout.ts'
import { tryLock } from './lock.ts'
import { IS_ROOT, makeCache } from './testing.ts'

const KEY = 'thing:1'
const absent = async () => undefined

/** Builds a folder with one file, which is moved to roots/. */
const buildThing = (cache: ImageCache, content: string, find: () => Promise<string | undefined> = absent) =>
  buildOnce(cache, KEY, {}, find, async ({ folder }) => {
    await mkdir(path.join(folder, 'thing'))
    await writeFile(path.join(folder, 'thing', 'file'), content)
    await moveIntoPlace(path.join(folder, 'thing'), pathOf(cache, 'roots', 'thing'))
    return content
  })

const readThing = (cache: ImageCache) =>
  readFile(pathOf(cache, 'roots', 'thing', 'file'), 'utf8').catch(() => undefined)

test('of concurrent requests for the same thing one builds it and all get it', async (t) => {
  const cache = await makeCache(t)
  const find = () => readThing(cache)

  const results = await Promise.all(['one', 'two', 'three'].map((content) => buildThing(cache, content, find)))

  assert.equal(new Set(results).size, 1)
  assert.deepEqual(await readdir(pathOf(cache, 'building')), [])
})

test('a failed build leaves only its reason, which the next build removes', async (t) => {
  const cache = await makeCache(t)

  const failing = buildOnce(cache, KEY, {}, absent, async ({ folder }) => {
    await writeFile(path.join(folder, 'half'), 'half')
    throw new Error('no space\nleft')
  })
  await assert.rejects(failing, /failed to build thing:1/)

  assert.deepEqual([...(await listFailed(cache))], [[KEY, 'no space left']])
  assert.deepEqual(await readdir(pathOf(cache, 'building')), [])
  await buildThing(cache, 'whole')
  assert.equal((await listFailed(cache)).size, 0)
})

test('an aborted build is not recorded as failed', async (t) => {
  const cache = await makeCache(t)
  const stopping = new AbortController()

  const building = buildOnce(cache, KEY, { signal: stopping.signal }, absent, async ({ signal }) => {
    stopping.abort()
    signal?.throwIfAborted()
  })

  await assert.rejects(building)
  assert.equal((await listFailed(cache)).size, 0)
})

test('other processes see a build in progress and its progress', async (t) => {
  const cache = await makeCache(t)
  const { promise, resolve } = Promise.withResolvers<void>()

  const building = buildOnce(cache, KEY, {}, absent, async ({ progress }) => {
    progress('half done')
    await promise
  })
  await until(async () => (await listBuilding(cache)).get(KEY) === 'half done', 'the progress is reported')
  resolve()
  await building

  assert.equal((await listBuilding(cache)).size, 0)
})

test('a rebuild ignores the old result but uses one that was built meanwhile', async () => {
  let digest = 'old'
  const find = await findNewer(async () => ({ digest }))

  assert.equal(await find(), undefined)
  digest = 'new'
  assert.deepEqual(await find(), { digest: 'new' })
})

test('after SIGKILL in the middle of a build its processes end, and the next build works', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: builds run in separate namespaces')
  const cache = await makeCache(t)
  const module = (name: string) => JSON.stringify(pathToFileURL(path.join(import.meta.dirname, name)).href)
  const mark = `${process.pid}.${Date.now() % 1e6}`
  const program = `
    import { buildOnce } from ${module('build.ts')}
    import { runInBuild } from ${module('run-in-build.ts')}
    const cache = { cacheDir: ${JSON.stringify(cache.cacheDir)}, log: { info() {}, warn() {} } }
    await buildOnce(cache, ${JSON.stringify(KEY)}, {}, async () => undefined, (build) =>
      runInBuild(build, 'sh', ['-c', 'mkdir "$1/thing"; echo half >"$1/thing/file"; sleep ${mark}9999 & wait', 'sh', build.folder], { what: 'waiting' }))
  `
  const killing = new AbortController()
  const killed = runCommand(process.execPath, ['--input-type=module', '--eval', program], { signal: killing.signal })
  const half = path.join(buildingFolder(cache, KEY), 'thing', 'file')
  await Promise.race([until(() => existsSync(half), 'the build is half way'), killed])
  await until(() => isRunning(`sleep ${mark}9999`), 'its last process runs')

  killing.abort() // SIGKILL to the process, not to its children
  await assert.rejects(killed)

  await until(async () => !(await isRunning(`sleep ${mark}9999`)), 'its processes are gone')
  assert.ok(existsSync(half))
  assert.equal((await listBuilding(cache)).size, 0)
  await prepareFolders(cache)
  assert.deepEqual(await readdir(pathOf(cache, 'building')), [])
  assert.equal(await buildThing(cache, 'whole'), 'whole')
  assert.equal(await readThing(cache), 'whole')
})

test('a start does not remove a build that another process is working on', async (t) => {
  const cache = await makeCache(t)
  const held = await tryLock(pathOf(cache, 'locks', KEY))
  await mkdir(buildingFolder(cache, KEY))

  await prepareFolders(cache)

  assert.equal((await readdir(pathOf(cache, 'building'))).length, 1)
  await held?.release()
})

test('unfinished builds are not accessible to other users', async (t) => {
  const cache = await makeCache(t)

  assert.equal((await stat(pathOf(cache, 'building'))).mode & 0o777, 0o700)
})

async function isRunning(commandLine: string): Promise<boolean> {
  const pids = (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))
  const lines = await Promise.all(pids.map((pid) => readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')))
  return lines.some((line) => line.split('\0').join(' ').trim() === commandLine)
}
