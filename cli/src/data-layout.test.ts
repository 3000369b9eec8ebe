import assert from 'node:assert/strict'
import { lstat, mkdir, mkdtemp, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { readInstanceConfig } from './config.ts'
import { giveKeys, moveChain, publishKeys } from './data-layout.ts'

const skip = process.getuid?.() !== 0 && 'needs root'
const KEY = `skp_${'a'.repeat(64)}\n`

test('keys of an earlier version are given to the control plane, and again when the operator replaces one', {
  skip,
}, async (t) => {
  const { config, at } = await setUp(t)
  await writeFile(at('local.key'), KEY)
  await writeFile(at('secrets.key'), 'one\n')

  await giveKeys(config)
  await giveKeys(config)

  assert.equal(await readFile(at('control-plane/local.key'), 'utf8'), KEY)
  assert.ok((await lstat(at('local.key'))).isFile())
  assert.equal(await readlink(at('secrets.key')), 'control-plane/secrets.key')
  assert.equal(await readFile(at('secrets.key'), 'utf8'), 'one\n')

  await rm(at('secrets.key'))
  await writeFile(at('secrets.key'), 'restored\n')
  await giveKeys(config)
  assert.equal(await readFile(at('control-plane/secrets.key'), 'utf8'), 'restored\n')
})

test('a secrets key that the operator has linked is copied, and stays where it is', { skip }, async (t) => {
  const { config, at } = await setUp(t)
  await writeFile(at('elsewhere'), 'one\n')
  await symlink(at('elsewhere'), at('secrets.key'))

  await giveKeys(config)
  await giveKeys(config)

  assert.equal(await readlink(at('secrets.key')), 'control-plane/secrets.key')
  assert.ok((await lstat(at('control-plane/secrets.key'))).isFile())
  for (const name of ['secrets.key', 'elsewhere']) assert.equal(await readFile(at(name), 'utf8'), 'one\n')
})

test('a key that the control plane writes is copied for everything else', { skip }, async (t) => {
  const { config, at } = await setUp(t)
  await giveKeys(config)
  await writeFile(at('control-plane/local.key'), KEY)

  await publishKeys(config)

  assert.equal(await readFile(at('local.key'), 'utf8'), KEY)
  const { uid, mode } = await stat(at('local.key'))
  assert.deepEqual([uid, mode & 0o777], [0, 0o600])
})

test('what is no key is not copied, and no link is followed', { skip }, async (t) => {
  const { config, at } = await setUp(t)
  await giveKeys(config)
  await writeFile(at('control-plane/local.key'), 'skp_1; touch /tmp/x\n')
  await assert.rejects(publishKeys(config), /no API key/)

  await rm(at('control-plane/local.key'))
  await symlink('/etc/shadow', at('control-plane/local.key'))
  await assert.rejects(publishKeys(config), { code: 'ELOOP' })
})

test('the development chain moves out of the folder of the gateway, unless that is a link', { skip }, async (t) => {
  const { config, at } = await setUp(t)
  await mkdir(at('gateway'))
  await symlink('/etc', at('gateway/chain'))
  await moveChain(config)
  await assert.rejects(lstat(at('development-chain')), { code: 'ENOENT' })

  await rm(at('gateway/chain'))
  await mkdir(at('gateway/chain'))
  await writeFile(at('gateway/chain/wallet.key'), 'key')
  await moveChain(config)
  assert.equal(await readFile(at('development-chain/wallet.key'), 'utf8'), 'key')
  await moveChain(config)
})

async function setUp(t: TestContext) {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-layout-'))
  t.after(() => rm(dataDir, { recursive: true }))
  return { config: readInstanceConfig({ WARREN_DATA_DIR: dataDir }), at: (name: string) => path.join(dataDir, name) }
}
