import assert from 'node:assert/strict'
import { mkdtemp, readdir, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { writeFileDurably } from './files.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-files-'))
after(() => rm(folder, { recursive: true }))

test('a file is replaced atomically, with its mode, and no temporary file remains', async () => {
  const file = path.join(folder, 'new', 'key')

  await writeFileDurably(file, 'one')
  await Promise.all([writeFileDurably(file, 'two'), writeFileDurably(file, 'three')])

  assert.match(await readFile(file, 'utf8'), /^(two|three)$/)
  assert.equal((await stat(file)).mode & 0o777, 0o600)
  assert.deepEqual(await readdir(path.dirname(file)), ['key'])
})

test('a write that fails leaves no temporary file', async () => {
  const target = path.join(folder, 'a-folder')
  await writeFileDurably(path.join(target, 'inside'), 'x')

  await assert.rejects(writeFileDurably(target, 'x'))

  assert.deepEqual((await readdir(folder)).sort(), ['a-folder', 'new'])
})
