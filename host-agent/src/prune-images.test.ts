import assert from 'node:assert/strict'
import { link, mkdir, open, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from './deps.ts'
import { type ImageCache, pathOf } from './images/layout.ts'
import { openImageStore } from './images/store.ts'
import { makeCache, makeFolder } from './images/testing.ts'
import { pruneImages } from './prune-images.ts'

/** Content of the cache: a folder named by its digest, and optionally a name that links to it. */
async function put(cache: ImageCache, content: 'roots' | 'kernels', id: string, name?: string): Promise<string> {
  const folder = pathOf(cache, content, id)
  await mkdir(folder)
  const file = path.join(folder, content === 'roots' ? 'root.ext4' : 'vmlinuz')
  await writeFile(file, id)
  if (name !== undefined) await symlink(path.join('..', content, id), pathOf(cache, 'names', name))
  return file
}

async function start(t: TestContext, cache: ImageCache, kernel: string): Promise<{ dataDir: string; deps: Deps }> {
  const dataDir = await makeFolder(t)
  const stopping = new AbortController()
  t.after(() => stopping.abort())
  const deps = {
    config: { dataDir },
    images: await openImageStore(cache),
    kernel: { vmlinuz: pathOf(cache, 'kernels', kernel, 'vmlinuz'), digest: `sha256:${kernel}` },
    log: { info: () => {}, warn: (details: { err: unknown }) => assert.fail(String(details.err)) },
    stopping: stopping.signal,
  } as unknown as Deps // Only what pruneImages uses.
  return { dataDir, deps }
}

test('superseded root file systems and kernels are removed, named ones and the image of a base stay', async (t) => {
  const cache = await makeCache(t)
  await put(cache, 'roots', 'aaaa', 'debian:13')
  const old = await put(cache, 'roots', 'bbbb')
  await put(cache, 'kernels', 'cccc', 'kernel-trixie')
  await put(cache, 'kernels', 'dddd')
  const { dataDir, deps } = await start(t, cache, 'cccc')
  await mkdir(path.join(dataDir, 'bases/one'), { recursive: true })
  await link(old, path.join(dataDir, 'bases/one/root.ext4'))

  await pruneImages(deps)

  assert.deepEqual(await readdir(pathOf(cache, 'roots')), ['aaaa'])
  assert.deepEqual(await readdir(pathOf(cache, 'kernels')), ['cccc'])
  assert.equal(await readFile(path.join(dataDir, 'bases/one/root.ext4'), 'utf8'), 'bbbb')
})

test('the kernel of a base and files that another process has open stay', async (t) => {
  const cache = await makeCache(t)
  await put(cache, 'kernels', 'cccc', 'kernel-trixie')
  await put(cache, 'kernels', 'dddd')
  await put(cache, 'kernels', 'eeee')
  const handle = await open(await put(cache, 'roots', 'bbbb'))
  t.after(() => handle.close())
  const other = await start(t, cache, 'eeee')
  await pruneImages(other.deps)
  await put(cache, 'kernels', 'dddd')
  const { dataDir, deps } = await start(t, cache, 'cccc')
  await mkdir(path.join(dataDir, 'bases/one'), { recursive: true })
  await writeFile(path.join(dataDir, 'bases/one/manifest.json'), JSON.stringify({ kernel: 'sha256:dddd' }))

  await pruneImages(deps)

  assert.deepEqual((await readdir(pathOf(cache, 'kernels'))).sort(), ['cccc', 'dddd', 'eeee'])
  assert.deepEqual(await readdir(pathOf(cache, 'roots')), ['bbbb'])
})
