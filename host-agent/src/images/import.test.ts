import assert from 'node:assert/strict'
import { chmod, chown, link, mkdir, readdir, readFile, symlink, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { runCommandOrThrow } from '../run-command.ts'
import { importImage, skopeoArgs } from './import.ts'
import { type ImageCache, pathOf } from './layout.ts'
import { tarFolder, writeLayout } from './oci-testing.ts'
import { CAPABILITY, IS_ROOT, inspectExt4, makeCache, makeFolder, setCapability } from './testing.ts'
import { findTestRegistry, startRegistry } from './testing-registry.ts'
import { requireTools } from './tools.ts'

const NAME = 'tiny:1'

/** Skips the test if this machine cannot import. */
function skipIfImpossible(t: TestContext, ...tools: Parameters<typeof requireTools>): boolean {
  try {
    requireTools(...tools)
  } catch (error) {
    t.skip((error as Error).message)
    return true
  }
  if (!IS_ROOT) t.skip('needs root: the files of an image belong to several users')
  return !IS_ROOT
}

/** bin/tool with owner, set-user-id bit and capability, a hard link, a symbolic link, and folders to be whited out. */
async function makeBase(folder: string): Promise<string> {
  const root = path.join(folder, 'base')
  for (const name of ['bin', 'etc/gone', 'etc/emptied']) await mkdir(path.join(root, name), { recursive: true })
  await writeFile(path.join(root, 'bin/tool'), 'tool')
  await chown(path.join(root, 'bin/tool'), 1000, 2000)
  await chmod(path.join(root, 'bin/tool'), 0o4755)
  setCapability(path.join(root, 'bin/tool'))
  await link(path.join(root, 'bin/tool'), path.join(root, 'bin/same'))
  await symlink('/bin/tool', path.join(root, 'etc/link'))
  for (const name of ['gone/file', 'emptied/old', 'removed']) await writeFile(path.join(root, 'etc', name), 'old')
  return tarFolder(root, path.join(folder, 'base.tar'))
}

async function makeChange(folder: string): Promise<string> {
  const root = path.join(folder, 'change')
  await mkdir(path.join(root, 'etc/emptied'), { recursive: true })
  for (const name of ['.wh.gone', '.wh.removed', 'emptied/.wh..wh..opq'])
    await writeFile(path.join(root, 'etc', name), '')
  await writeFile(path.join(root, 'etc/emptied/new'), 'new')
  return tarFolder(root, path.join(folder, 'change.tar'))
}

async function checkBase(file: string): Promise<void> {
  const tool = await inspectExt4(file, 'stat /bin/tool')
  assert.match(tool, /Mode: +04755[\s\S]*User: +1000 +Group: +2000[\s\S]*Links: 2 /)
  assert.match(tool, CAPABILITY)
  assert.match(await inspectExt4(file, 'stat /etc/link'), /dest: "\/bin\/tool"/)
  assert.equal(await inspectExt4(file, 'cat /bin/same'), 'tool')
}

const namesIn = async (file: string, folder: string): Promise<string[]> =>
  (await inspectExt4(file, `ls -p ${folder}`))
    .split('\n')
    .flatMap((line) => line.split('/')[5] ?? [])
    .sort()

async function checkNothingLeft(cache: ImageCache): Promise<void> {
  for (const folder of ['roots', 'names', 'building'] as const) {
    assert.deepEqual(await readdir(pathOf(cache, folder)), [], folder)
  }
}

test('an image from a tarball has its owners, modes, links and capabilities', async (t) => {
  if (skipIfImpossible(t)) return
  const cache = await makeCache(t)
  const tarball = await makeBase(await makeFolder(t))
  await runCommandOrThrow('gzip', [tarball])

  const image = await importImage(cache, { source: `${tarball}.gz`, name: NAME })

  assert.equal(image.name, NAME)
  assert.equal(image.manifest.source, `${tarball}.gz`)
  await checkBase(image.path)
})

test('layers of an OCI layout are applied in order, with their whiteouts', async (t) => {
  if (skipIfImpossible(t, 'skopeo', 'umoci')) return
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const layout = await writeLayout(path.join(folder, 'layout'), [await makeBase(folder), await makeChange(folder)])

  const image = await importImage(cache, { source: layout.folder, name: NAME })

  await checkBase(image.path)
  assert.deepEqual(await namesIn(image.path, '/etc'), ['.', '..', 'emptied', 'link'])
  assert.deepEqual(await namesIn(image.path, '/etc/emptied'), ['.', '..', 'new'])
  assert.match(image.manifest.source, /layout \(sha256:[0-9a-f]{64}\)$/)
})

test('an archive of docker save can be imported', async (t) => {
  if (skipIfImpossible(t, 'skopeo', 'umoci')) return
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const layout = await writeLayout(path.join(folder, 'layout'), [await makeBase(folder)])
  const archive = path.join(folder, 'saved.tar')
  await runCommandOrThrow('skopeo', skopeoArgs(`oci:${layout.folder}`, `docker-archive:${archive}:some/name:1`))

  const image = await importImage(cache, { source: archive, name: NAME })

  await checkBase(image.path)
})

test('a layer with a wrong digest is rejected, and only the reason of the failure is left', async (t) => {
  if (skipIfImpossible(t, 'skopeo', 'umoci')) return
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const layout = await writeLayout(path.join(folder, 'layout'), [await makeBase(folder)])
  const blob = await readFile(layout.blobs[0]!)
  blob[blob.length >> 1]! ^= 1
  await writeFile(layout.blobs[0]!, blob)

  await assert.rejects(importImage(cache, { source: layout.folder, name: NAME }))

  await checkNothingLeft(cache)
  assert.deepEqual(await readdir(pathOf(cache, 'failed')), [NAME])
})

test('an image for another architecture is rejected', async (t) => {
  if (skipIfImpossible(t, 'skopeo', 'umoci')) return
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const layout = await writeLayout(path.join(folder, 'layout'), [await makeBase(folder)], 'arm64')

  const importing = importImage(cache, { source: layout.folder, name: NAME })

  await assert.rejects(importing, (error: Error) => /linux on arm64/.test((error.cause as Error).message))
  await checkNothingLeft(cache)
})

test('an image is imported from a registry on this machine', async (t) => {
  if (skipIfImpossible(t, 'skopeo', 'umoci')) return
  const registry = await findTestRegistry()
  if (!registry) return t.skip('the Debian package docker-registry is not installed')
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const layout = await writeLayout(path.join(folder, 'layout'), [await makeBase(folder), await makeChange(folder)])
  const host = await startRegistry(t, registry, path.join(folder, 'registry'))
  const reference = `${host}/base/tiny:1`
  const push = ['--insecure-policy', 'copy', '--dest-tls-verify=false', `oci:${layout.folder}`, `docker://${reference}`]
  await runCommandOrThrow('skopeo', push)

  const image = await importImage(cache, { source: reference, name: NAME })

  await checkBase(image.path)
  await assert.rejects(importImage(cache, { source: `${host}/base/absent:1`, name: NAME }))
})

test('sources that are not images are rejected and leave nothing behind', async (t) => {
  if (skipIfImpossible(t)) return
  const cache = await makeCache(t)
  const folder = await makeFolder(t)
  const text = path.join(folder, 'text')
  await writeFile(text, 'not a tarball')
  const cases: [string, string, RegExp][] = [
    [path.join(folder, 'absent.tar'), NAME, /there is no file/],
    [folder, NAME, /is not an OCI layout/],
    ['what is this', NAME, /is neither a file nor an image reference/],
    [text, 'no-tag', /is not an image name/],
    [text, '../up:1', /is not an image name/],
    [text, NAME, /failed to build/],
  ]
  for (const [source, name, message] of cases) {
    await assert.rejects(importImage(cache, { source, name }), message, `${source} as ${name}`)
  }

  await checkNothingLeft(cache)
})
