import assert from 'node:assert/strict'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { test } from 'node:test'
import { readPublicKeys } from './ssh.ts'

test('a relative key file is relative to where the user typed the command', async (t) => {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-keys-'))
  t.after(() => rm(folder, { recursive: true }))
  await writeFile(path.join(folder, 'id.pub'), 'ssh-ed25519 AAAA one\n\nssh-ed25519 BBBB two\n')

  const keys = await readPublicKeys('id.pub', { INIT_CWD: folder })

  assert.deepEqual(keys, ['ssh-ed25519 AAAA one', 'ssh-ed25519 BBBB two'])
  assert.deepEqual(await readPublicKeys(path.join(folder, 'id.pub'), { INIT_CWD: '/' }), keys)
})
