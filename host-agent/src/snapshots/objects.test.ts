import assert from 'node:assert/strict'
import { existsSync, lstatSync } from 'node:fs'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { openObjects } from './objects.ts'

const skip = process.getuid?.() === 0 ? false : 'needs root to change the owner of files'
const EXPECTED = { uid: 0, maxBytes: 100 }

async function make(t: { after(end: () => Promise<void>): void }) {
  const root = await mkdtemp(path.join(tmpdir(), 'warren-objects-'))
  t.after(() => rm(root, { recursive: true }))
  const [folder, work] = [path.join(root, 'objects'), path.join(root, 'work')]
  for (const one of [folder, work]) await mkdir(one)
  const write = async (name: string, content = 'x') => {
    await writeFile(path.join(work, name), content)
    return path.join(work, name)
  }
  return { objects: openObjects(folder), work, write }
}

test('an imported file belongs to root and is read-only', { skip }, async (t) => {
  const { objects, write } = await make(t)

  await objects.importFile(await write('disk'), 'd', EXPECTED)

  const { mode, uid } = lstatSync(objects.fileOf('d'))
  assert.deepEqual([mode & 0o777, uid], [0o444, 0])
})

test('a symbolic link, a folder and a file that is too large are not imported', { skip }, async (t) => {
  const { objects, work, write } = await make(t)
  await symlink('/etc/passwd', path.join(work, 'link'))

  await assert.rejects(
    objects.importFile(path.join(work, 'link'), 'a', EXPECTED),
    /not a file that QEMU was expected to write/,
  )
  await assert.rejects(objects.importFile(work, 'b', EXPECTED))
  await assert.rejects(objects.importFile(await write('large', 'x'.repeat(101)), 'c', EXPECTED), /101 bytes/)

  for (const id of ['a', 'b', 'c']) assert.ok(!existsSync(objects.fileOf(id)), id)
})

test('a reserved object is deleted when the reservation is released', { skip }, async (t) => {
  const { objects, write } = await make(t)
  await objects.importFile(await write('disk'), 'd', EXPECTED)
  objects.retain('user', ['d'])

  const reservation = objects.reserve(['d'])
  await objects.release('user')
  assert.ok(existsSync(objects.fileOf('d')))
  await reservation.release()

  assert.ok(!existsSync(objects.fileOf('d')))
})

test('an id can be used again only after its old file is deleted', { skip }, async (t) => {
  const { objects, write } = await make(t)
  const file = await write('disk')
  for (let i = 0; i < 20; i++) {
    objects.retain('one', ['d'])
    await objects.importFile(file, 'd', EXPECTED)
    const released = objects.release('one')
    const reservation = objects.reserve(['d'])

    await objects.importFile(file, 'd', EXPECTED)
    await released

    assert.ok(existsSync(objects.fileOf('d')), `round ${i}`)
    await reservation.release()
  }
})
