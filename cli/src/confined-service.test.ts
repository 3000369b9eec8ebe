/** What root does in folders that belong to a service, before it starts it. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { lstat, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { readInstanceConfig } from './config.ts'
import { checkAuthorityFolder, prepareService } from './confined-service.ts'
import { planControlPlane } from './control-plane.ts'

const skip = process.getuid?.() !== 0 && 'needs root'

test('compiled code of other versions of Node is removed', { skip }, async (t) => {
  const { config, compiled } = await setUp(t)
  const current = path.join(compiled, `${process.version}-${process.arch}-0-0`)
  for (const folder of [path.join(compiled, 'v1.0.0-x64-0-0'), current]) await mkdir(folder, { recursive: true })

  await prepare(t, config)

  assert.ok(existsSync(current))
  assert.ok(!existsSync(path.join(compiled, 'v1.0.0-x64-0-0')))
})

test('root does not follow a link that a service has put in place of its compiled code', { skip }, async (t) => {
  const { config, compiled, folder } = await setUp(t)
  const victim = path.join(folder, 'victim')
  await mkdir(victim)
  await writeFile(path.join(victim, 'file'), 'content')
  await mkdir(path.dirname(compiled), { recursive: true })
  await symlink(victim, compiled)

  await prepare(t, config)

  assert.ok(existsSync(path.join(victim, 'file')))
  assert.equal((await lstat(path.join(victim, 'file'))).uid, 0)
  assert.equal((await lstat(victim)).uid, 0)
})

test('a folder with other files is not given to a service as one for an authority', { skip }, async (t) => {
  const { folder } = await setUp(t)
  await writeFile(path.join(folder, 'ca.pem'), '')
  await checkAuthorityFolder(path.join(folder, 'absent'), 'WARREN_INGRESS_CA_DIR')

  await assert.rejects(
    checkAuthorityFolder(folder, 'WARREN_INGRESS_CA_DIR'),
    /^Error: WARREN_INGRESS_CA_DIR names .* which has other files, such as data; it must be a folder for the authority/,
  )
})

async function setUp(t: TestContext) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-services-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const dataDir = path.join(folder, 'data')
  await mkdir(dataDir)
  const config = readInstanceConfig({ WARREN_DATA_DIR: dataDir })
  return { folder, config, compiled: path.join(dataDir, 'control-plane/compiled') }
}

async function prepare(t: TestContext, config: ReturnType<typeof readInstanceConfig>): Promise<void> {
  const prepared = await prepareService(config, planControlPlane(config, { PATH: process.env.PATH }))
  t.after(() => prepared.release())
}
