import assert from 'node:assert/strict'
import { chmod, mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { checkReadable, listCode } from './code.ts'
import { REPOSITORY } from './confine.ts'

test('the code of a service has no data directory in it', () => {
  const code = listCode(['control-plane', 'kit'])

  assert.ok(code.includes(path.join(REPOSITORY, 'control-plane/src')))
  const around = path.join(REPOSITORY, '.warren')
  assert.deepEqual(
    code.filter((folder) => around.startsWith(folder)),
    [],
  )
})

test('a checkout that only its owner can read is refused, with the command that opens it', async (t) => {
  const root = await mkdtemp(path.join(tmpdir(), 'warren-code-'))
  t.after(() => rm(root, { recursive: true }))
  await mkdir(path.join(root, 'kit/src/deep'), { recursive: true })
  await mkdir(path.join(root, 'node_modules'))
  const file = path.join(root, 'kit/src/deep/file.ts')
  await writeFile(file, '')
  for (const name of ['kit/src', 'kit/src/deep', 'node_modules']) await chmod(path.join(root, name), 0o755)
  await chmod(file, 0o644)
  checkReadable(['kit'], root)

  await chmod(file, 0o600)
  assert.throws(() => checkReadable(['kit'], root), /deep\/file\.ts can be read by its owner only.*chmod -R go\+rX/)

  await chmod(file, 0o644)
  await chmod(path.dirname(file), 0o700)
  assert.throws(() => checkReadable(['kit'], root), /kit\/src\/deep can be read by its owner only/)
})
