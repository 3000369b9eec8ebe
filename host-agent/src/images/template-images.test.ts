import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { link, readdir, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { openTemplateImages } from './template-images.ts'
import { makeFolder } from './testing.ts'

const LOG = { info: () => {}, warn: () => {} }
const NEVER = new AbortController().signal
const [ONE, TWO] = ['tpl:01ARZ3NDEKTSV4RRFFQ69G5FAV', 'tpl:01ARZ3NDEKTSV4RRFFQ69G5FAW']

const makeRoot = (content: string) => async (build: { folder: string }) => {
  const file = path.join(build.folder, 'disk')
  await writeFile(file, content)
  return file
}

test('an image is published, gets a second name, and goes with its last name', async (t) => {
  const images = await openTemplateImages(await makeFolder(t), LOG)

  const image = await images.publish({ name: ONE, source: 'test' }, makeRoot('root'), NEVER)
  const second = await images.link(TWO, image.digest, NEVER)

  assert.deepEqual([second?.digest, second?.path], [image.digest, image.path])
  assert.deepEqual(
    (await images.list()).map(({ name, state, min_disk_mib }) => [name, state, min_disk_mib]),
    [
      [ONE, 'ready', 1],
      [TWO, 'ready', 1],
    ],
  )
  // As a base does: the file lives on for it.
  const linked = path.join(path.dirname(path.dirname(image.path)), '..', 'base')
  await link(image.path, linked)
  await images.remove(ONE)
  assert.ok(existsSync(image.path))
  await images.remove(TWO)
  await images.remove(TWO)
  assert.deepEqual([existsSync(image.path), existsSync(linked)], [false, true])
  assert.equal(await images.link(ONE, image.digest, NEVER), undefined)
  assert.deepEqual(await images.list(), [])
})

test('the last two names of an image can be removed at the same time', async (t) => {
  const images = await openTemplateImages(await makeFolder(t), LOG)
  const { digest, path: file } = await images.publish({ name: ONE, source: 'test' }, makeRoot('root'), NEVER)
  await images.link(TWO, digest, NEVER)

  await Promise.all([images.remove(ONE), images.remove(TWO)])

  assert.equal(existsSync(file), false)
})

test('a build that fails or is cancelled leaves nothing', async (t) => {
  const folder = await makeFolder(t)
  const images = await openTemplateImages(folder, LOG)
  const failing = async () => {
    throw new Error('the disk is full')
  }

  await assert.rejects(images.publish({ name: ONE, source: 'test' }, failing, NEVER), { message: 'the disk is full' })
  const cancel = new AbortController()
  const cancelled = images.publish(
    { name: TWO, source: 'test' },
    async (build) => {
      cancel.abort(new Error('cancelled'))
      build.signal?.throwIfAborted()
      return ''
    },
    cancel.signal,
  )
  await assert.rejects(cancelled, { message: 'cancelled' })

  assert.deepEqual(await images.list(), [])
  const store = path.join(folder, 'templates', 'images')
  for (const part of ['roots', 'names', 'building', 'failed'])
    assert.deepEqual(await readdir(path.join(store, part)), [])
})

test('the next start removes content without a name', async (t) => {
  const folder = await makeFolder(t)
  const images = await openTemplateImages(folder, LOG)
  const image = await images.publish({ name: ONE, source: 'test' }, makeRoot('root'), NEVER)
  await rm(path.join(folder, 'templates', 'images', 'names', ONE))

  const again = await openTemplateImages(folder, LOG)

  assert.deepEqual([await again.find(ONE), existsSync(image.path)], [undefined, false])
})
