import assert from 'node:assert/strict'
import { existsSync, lstatSync } from 'node:fs'
import { mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { openObjects } from './objects.ts'

const skip = process.getuid?.() === 0 ? false : 'files are given to root'
const MINE = { uid: 0, maxBytes: 100 }

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

test('what is taken in is read-only and root’s', { skip }, async (t) => {
  const { objects, write } = await make(t)

  await objects.take(await write('disk'), 'd', MINE)

  const { mode, uid } = lstatSync(objects.fileOf('d'))
  assert.deepEqual([mode & 0o777, uid], [0o444, 0])
})

test('a link, a folder, somebody else’s file or one that is too large is not taken in', { skip }, async (t) => {
  const { objects, work, write } = await make(t)
  await symlink('/etc/passwd', path.join(work, 'link'))

  await assert.rejects(objects.take(path.join(work, 'link'), 'a', MINE), /not what QEMU was to write/)
  await assert.rejects(objects.take(work, 'b', MINE))
  await assert.rejects(objects.take(await write('large', 'x'.repeat(101)), 'c', MINE), /101 bytes/)

  for (const id of ['a', 'b', 'c']) assert.ok(!existsSync(objects.fileOf(id)), id)
})

test('an object that is reserved outlives its last user, and goes with the reservation', { skip }, async (t) => {
  const { objects, write } = await make(t)
  await objects.take(await write('disk'), 'd', MINE)
  objects.use('somebody', ['d'])

  const reservation = objects.reserve(['d'])
  await objects.drop('somebody')
  assert.ok(existsSync(objects.fileOf('d')))
  await reservation.release()

  assert.ok(!existsSync(objects.fileOf('d')))
})

test('a name is taken again only when what had it is gone', { skip }, async (t) => {
  const { objects, write } = await make(t)
  const file = await write('disk')
  for (let i = 0; i < 20; i++) {
    objects.use('one', ['d'])
    await objects.take(file, 'd', MINE)
    const dropped = objects.drop('one')
    const reservation = objects.reserve(['d'])

    await objects.take(file, 'd', MINE)
    await dropped

    assert.ok(existsSync(objects.fileOf('d')), `round ${i}`)
    await reservation.release()
  }
})
