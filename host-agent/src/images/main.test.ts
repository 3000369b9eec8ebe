import assert from 'node:assert/strict'
import { mkdir, open, readdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { buildOnce } from './build.ts'
import { findImage } from './image.ts'
import { type ImageCache, pathOf, ROOT_FILE } from './layout.ts'
import { images } from './main.ts'
import { tarFolder } from './oci-testing.ts'
import { openImageStore } from './store.ts'
import { openTemplateImages, templateImagesFolder } from './template-images.ts'
import { IS_ROOT, makeCache, makeFolder } from './testing.ts'

async function warrenImages(cache: ImageCache, ...args: string[]) {
  const printed = { out: '', err: '' }
  const exitCode = await images(args, {
    env: { ...process.env, WARREN_CACHE_DIR: cache.cacheDir, WARREN_DATA_DIR: cache.cacheDir },
    stdout: { write: (text) => (printed.out += text) },
    stderr: { write: (text) => (printed.err += text) },
  })
  return { ...printed, exitCode }
}

async function makeTarball(t: TestContext): Promise<string> {
  const folder = await makeFolder(t)
  await mkdir(path.join(folder, 'root/bin'), { recursive: true })
  await writeFile(path.join(folder, 'root/bin/sh'), 'shell')
  return tarFolder(path.join(folder, 'root'), path.join(folder, 'root.tar'))
}

test('an image is imported, listed with its size and removed', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: the files of an image belong to several users')
  const cache = await makeCache(t)
  const tarball = await makeTarball(t)

  const imported = await warrenImages(cache, 'import', tarball, '--name', 'tiny:1')
  assert.equal(imported.exitCode, 0, imported.err)
  assert.match(imported.out, /^NAME +STATE +SIZE.*\ntiny:1 +ready +\d+ MB +\d+ MiB +sha256:[0-9a-f]{12}\n$/)
  assert.match(imported.err, /^unpacking the tarball\npacking the file system\n/)

  const [listed] = JSON.parse((await warrenImages(cache, 'list', '--json')).out)
  assert.deepEqual([listed.name, listed.state], ['tiny:1', 'ready'])
  assert.ok(listed.size_bytes > 0 && listed.min_disk_mib > 64)

  const removed = await warrenImages(cache, 'rm', 'tiny:1')
  assert.deepEqual([removed.exitCode, removed.out], [0, 'removed tiny:1\n'])
  assert.deepEqual(await readdir(pathOf(cache, 'roots')), [])
  assert.match((await warrenImages(cache, 'list')).out, /^No images yet/)
})

test('the packages of an image and the programs of the machine are shown, and printed as a bill of materials', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: the files of an image belong to several users')
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  await mkdir(path.join(folder, 'root/var/lib/dpkg'), { recursive: true })
  const status = 'Package: tiny\nStatus: install ok installed\nArchitecture: all\nVersion: 1.2-3\n'
  await writeFile(path.join(folder, 'root/var/lib/dpkg/status'), status)
  const tarball = await tarFolder(path.join(folder, 'root'), path.join(folder, 'root.tar'))
  assert.equal((await warrenImages(cache, 'import', tarball, '--name', 'tiny:1')).exitCode, 0)

  const shown = await warrenImages(cache, 'inspect', 'tiny:1')
  const bill = JSON.parse((await warrenImages(cache, 'inspect', 'tiny:1', '--sbom')).out)
  const missing = await warrenImages(cache, 'inspect', 'other:1')

  assert.match(shown.out, /^image +tiny:1\ndigest +sha256:[0-9a-f]{64}\n/)
  for (const line of [
    /^node +[\d.]+ +sha256:[0-9a-f]{64}$/m,
    /^postgresql +[\d.]+ +sha256:/m,
    /^tiny +1\.2-3 +all +-$/m,
  ])
    assert.match(shown.out, line)
  assert.equal(bill.bomFormat, 'CycloneDX')
  assert.ok(bill.components.some((one: { purl?: string }) => one.purl === 'pkg:deb/linux/tiny@1.2-3?arch=all'))
  assert.equal(missing.exitCode, 1)
  assert.match(missing.err, /there is no image other:1/)
})

test('images of templates are listed, and removed only with their template', async (t) => {
  const cache = await makeCache(t)
  const name = 'tpl:01ARZ3NDEKTSV4RRFFQ69G5FAV'
  const templates = await openTemplateImages(cache.cacheDir, cache.log)
  await templates.publish(
    { name, source: 'test' },
    async ({ folder }) => {
      await writeFile(path.join(folder, 'disk'), 'root')
      return path.join(folder, 'disk')
    },
    new AbortController().signal,
  )

  const listed = await warrenImages(cache, 'list')
  const refused = await warrenImages(cache, 'rm', name)

  assert.match(listed.out, /\ntpl:01ARZ3NDEKTSV4RRFFQ69G5FAV +ready +1 MB +1 MiB +sha256:/)
  assert.deepEqual([refused.exitCode, /delete the template instead/.test(refused.err)], [1, true])
})

test('to inspect an image changes nothing, also beside a host agent that builds', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: runs programs as another user')
  const cache = await makeCache(t)
  const name = 'tpl:01ARZ3NDEKTSV4RRFFQ69G5FAV'
  const templates = await openTemplateImages(cache.cacheDir, cache.log)
  const publish = (text: string) =>
    templates.publish(
      { name, source: 'test' },
      async ({ folder }) => {
        await writeFile(path.join(folder, 'disk'), text)
        return path.join(folder, 'disk')
      },
      new AbortController().signal,
    )
  await publish('an image that has no name any more, and that a build may be about to name')
  await publish('root')
  // As those of a build that is under way, or was killed.
  const stores = [cache, { ...cache, cacheDir: templateImagesFolder(cache.cacheDir) }]
  for (const store of stores) await mkdir(pathOf(store, 'building', 'left'))
  const listFiles = () => readdir(cache.cacheDir, { recursive: true }).then((files) => files.filter(isOfStore).sort())
  const isOfStore = (file: string) => !file.startsWith('jail')
  const before = await listFiles()

  const inspected = await warrenImages(cache, 'inspect', name)

  assert.equal(inspected.exitCode, 0, inspected.err)
  assert.match(inspected.out, /^image +tpl:01ARZ3NDEKTSV4RRFFQ69G5FAV\n/)
  assert.deepEqual(await listFiles(), before)
  assert.equal(before.filter((file) => file.includes('roots/') && file.endsWith(ROOT_FILE)).length, 2)
})

test('an image is not removed while a process has it open or the host agent needs it', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: the files of an image belong to several users')
  const cache = await makeCache(t)
  await warrenImages(cache, 'import', await makeTarball(t), '--name', 'tiny:1')
  const image = await findImage(cache, 'tiny:1')
  const handle = await open(image!.path)

  const refused = await warrenImages(cache, 'rm', 'tiny:1')
  await handle.close()

  assert.deepEqual([refused.exitCode, refused.err], [1, 'warren images: tiny:1 is in use by a sandbox\n'])
  const opened = await openImageStore(cache)
  await assert.rejects(
    opened.remove('tiny:1', ({ digest }) => digest === image!.digest),
    /in use/,
  )
  assert.deepEqual(await findImage(cache, 'tiny:1'), image)
})

test('a replaced image is pruned once no sandbox needs it', async (t) => {
  if (!IS_ROOT) return t.skip('needs root: the files of an image belong to several users')
  const cache = await makeCache(t)
  const opened = await openImageStore(cache)
  const source = await makeTarball(t)
  const old = await opened.import({ source, name: 'tiny:1' })
  const current = await opened.import({ source, name: 'tiny:1' })

  assert.deepEqual(await opened.prune(({ digest }) => digest === old.digest), [])
  assert.deepEqual(await opened.prune(() => false), [old.digest])

  assert.deepEqual(await opened.find('tiny:1'), current)
})

test('the list shows builds in progress and the reasons of failed ones', async (t) => {
  const cache = await makeCache(t)
  const { promise, resolve } = Promise.withResolvers<void>()
  const building = buildOnce(
    cache,
    'slow:1',
    {},
    async () => undefined,
    () => promise,
  )
  const failing = buildOnce(
    cache,
    'bad:1',
    {},
    async () => undefined,
    async () => {
      throw new Error('no mirror')
    },
  )
  await assert.rejects(failing)

  const { out } = await warrenImages(cache, 'list')
  const busy = await warrenImages(cache, 'rm', 'slow:1')
  resolve()
  await building

  assert.match(out, /^bad:1 +failed +- +- +-\n {2}no mirror\nslow:1 +building/m)
  assert.deepEqual([busy.exitCode, busy.err], [1, 'warren images: slow:1 is being built\n'])
  assert.equal((await warrenImages(cache, 'rm', 'bad:1')).exitCode, 0)
})

test('the error for an image without a recipe suggests an import', async (t) => {
  const cache = await makeCache(t)

  const { exitCode, err } = await warrenImages(cache, 'build', 'ubuntu:26.04')

  assert.equal(exitCode, 1)
  assert.match(
    err,
    /only debian:13 and devbox:1 can be built; import .* warren images import SOURCE --name ubuntu:26\.04/,
  )
  assert.deepEqual(await (await openImageStore(cache)).list(), [])
})

test('the error for a wrong command line names what is wrong', async (t) => {
  const cache = await makeCache(t)
  const cases: [string[], string][] = [
    [['remove', 'a:1'], "unknown command 'remove'"],
    [['toString'], "unknown command 'toString'"],
    [['rm'], "missing required argument 'name'"],
    [['import', 'x.tar'], "required option '--name <name>' not specified"],
    [['list', 'a:1'], "too many arguments for 'list'. Expected 0 arguments but got 1: a:1"],
    [['build', 'a:1', '--name', 'b:1'], "unknown option '--name'"],
    [['list', '--fast'], "unknown option '--fast'"],
  ]
  for (const [args, message] of cases) {
    const { exitCode, out, err } = await warrenImages(cache, ...args)
    assert.deepEqual([exitCode, out], [2, ''], args.join(' '))
    assert.ok(err.startsWith(`warren images: ${message}`), err)
  }
  const nothing = await warrenImages(cache)
  assert.deepEqual([nothing.exitCode, nothing.out, /^Usage: \S*warren images/.test(nothing.err)], [2, '', true])
  const absent = await warrenImages(cache, 'rm', 'a:1')
  assert.deepEqual([absent.exitCode, absent.err], [1, 'warren images: there is no image a:1\n'])
})

test('the help lists every command', async (t) => {
  const { exitCode, out } = await warrenImages(await makeCache(t), '--help')

  assert.equal(exitCode, 0)
  for (const word of ['list', 'build', 'import', 'rm', '--json', 'WARREN_DEBIAN_MIRROR'])
    assert.ok(out.includes(word), word)
})
