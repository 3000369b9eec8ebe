import assert from 'node:assert/strict'
import { mkdir, open, stat, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { runCommandOrThrow } from '../run-command.ts'
import { makeExt4 } from './ext4.ts'
import { shrinkExt4 } from './shrink-ext4.ts'
import { inspectExt4, makeBuild, makeFolder, makeToolDeps, skipTools as skip } from './testing.ts'
import { TOOL_ENV as env } from './tools.ts'

const MIB = 1024 ** 2
/** Above real accounts, as the ids that VMMs have. */
const UID = 1_610_612_736

async function makeFileSystem(folder: string): Promise<string> {
  const root = path.join(folder, 'root')
  await mkdir(root)
  await writeFile(path.join(root, 'data'), Buffer.alloc(20 * MIB, 'data'))
  const file = path.join(folder, 'disk')
  await makeExt4(makeBuild(folder), root, file, 128)
  // As a guest grows it.
  await truncate(file, 4096 * MIB)
  await runCommandOrThrow('resize2fs', [file], { env })
  return file
}

test('a file system becomes as small as its content, and stays intact', { skip }, async (t) => {
  const deps = await makeToolDeps(t)
  const file = await makeFileSystem(await makeFolder(t))

  const usedBytes = await shrinkExt4(deps, file, UID)

  const { size, uid } = await stat(file)
  assert.ok(size < 512 * MIB && size > 64 * MIB, `${size}`)
  assert.ok(usedBytes > 20 * MIB && usedBytes < 400 * MIB, `${usedBytes}`)
  assert.equal(uid, 0)
  await runCommandOrThrow('e2fsck', ['-f', '-n', file], { env })
  assert.match(await inspectExt4(file, 'stat /data'), new RegExp(`Size: ${20 * MIB}`))
})

test('a damaged file system is repaired, and what is none is refused', { skip }, async (t) => {
  const deps = await makeToolDeps(t)
  const folder = await makeFolder(t)
  const file = await makeFileSystem(folder)
  const handle = await open(file, 'r+')
  await handle.write(Buffer.alloc(4096, 0xff), 0, 4096, 5 * MIB)
  await handle.close()
  await shrinkExt4(deps, file, UID)
  await runCommandOrThrow('e2fsck', ['-f', '-n', file], { env })

  const other = path.join(folder, 'other')
  await writeFile(other, Buffer.alloc(MIB, 'x'))
  await assert.rejects(shrinkExt4(deps, other, UID), /e2fsck failed/)
})

test('an abort ends it', { skip }, async (t) => {
  const deps = await makeToolDeps(t)
  const file = await makeFileSystem(await makeFolder(t))

  await assert.rejects(shrinkExt4(deps, file, UID, AbortSignal.abort(new Error('cancelled'))), /cancelled/)
})
