/** What root does in folders that belong to a service, before it starts it. */
import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { chown, lstat, mkdir, mkdtemp, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { promisify } from 'node:util'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { serviceUser } from '@warren/kit/confine/services'
import { type InstanceConfig, ROOT, readInstanceConfig } from './config.ts'
import { prepareService } from './confined-service.ts'
import { planControlPlane } from './control-plane.ts'
import { AUTHORITY_FILES, checkDedicated, checkOwnFolders } from './own-folders.ts'

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

test('a folder with other files is not given to a service, unless it has it already', { skip }, async (t) => {
  const { config, folder } = await setUp(t)
  const named = { setting: 'WARREN_INGRESS_CA_DIR', files: AUTHORITY_FILES }
  const check = (name: string) => checkDedicated(config, 'control-plane', path.join(folder, name), named)
  await writeFile(path.join(folder, 'ca.pem'), '')
  await check('absent')

  await assert.rejects(
    check(''),
    /^Error: WARREN_INGRESS_CA_DIR names .* which has other files, such as data; it must be a folder for this purpose/,
  )

  const { uid } = serviceUser((await claimServiceIds(config.dataDir))!, 'control-plane')
  await chown(folder, uid, uid)
  await check('')
})

for (const [what, setting] of [
  ['the data directory', (data: string) => data],
  ['a folder around the data directory', (data: string) => path.dirname(data)],
  ['a link to a folder around the data directory', (data: string) => `${data}-link`],
  ['the whole machine', () => '/'],
  ['the database', (data: string) => path.join(data, 'postgres')],
  ['a folder in that of the control plane', (data: string) => path.join(data, 'control-plane/gateway')],
  ['a folder of the host agent', (data: string) => path.join(data, 'snapshots')],
  ['the code', () => path.join(ROOT, 'gateway')],
  ['a folder of the machine', () => '/var/lib'],
] as const) {
  test(`${what} is not given to the gateway as its data directory`, { skip }, async (t) => {
    const { config, folder } = await setUp(t)
    await symlink(folder, `${config.dataDir}-link`)
    const gatewayDir = setting(config.dataDir)

    await assert.rejects(
      checkOwnFolders({ ...config, gatewayDir }, 'gateway', [gatewayDir]),
      /cannot be given to gateway/,
    )
  })
}

test('folders of services are their own, in the data directory or elsewhere', { skip }, async (t) => {
  const { config, folder } = await setUp(t)
  const elsewhere = { ...config, gatewayDir: path.join(folder, 'gateway'), caDir: path.join(folder, 'ca') }

  for (const one of [config, elsewhere]) {
    await checkOwnFolders(one, 'gateway', [one.gatewayDir, path.join(one.gatewayDir, 'ca')])
    await checkOwnFolders(one, 'control-plane', [path.join(one.dataDir, 'control-plane'), one.caDir])
    await checkOwnFolders(one, 'development-chain', [one.chainDir])
    await checkOwnFolders(one, 'migrations', [path.join(one.dataDir, 'migrations')])
  }
  await assert.rejects(checkOwnFolders(elsewhere, 'gateway', [elsewhere.caDir]), /cannot be given to gateway/)
})

test('every folder of a service is checked before it is handed over', { skip }, async (t) => {
  const { config, folder } = await setUp(t)
  const plan = planControlPlane({ ...config, caDir: folder }, { PATH: process.env.PATH })

  await assert.rejects(prepareService(config, plan), /cannot be given to control-plane/)

  assert.equal((await lstat(folder)).uid, 0)
})

test('a service finds programs of the machine, also if the PATH has only folders that it does not see', {
  skip,
}, async (t) => {
  const { config, folder } = await setUp(t)

  const { command, args, env } = await prepare(t, config, { PATH: path.join(folder, 'bin') })

  const program = args.indexOf('--')
  const script = [...args.slice(0, program + 1), '/bin/sh', '-c', 'command -v setpriv']
  const { stdout } = await promisify(execFile)(command, script, { env })
  assert.match(stdout, /\/setpriv\n$/)
})

async function setUp(t: TestContext) {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-services-'))
  t.after(() => rm(folder, { recursive: true, force: true }))
  const dataDir = path.join(folder, 'data')
  await mkdir(dataDir)
  const config = readInstanceConfig({ WARREN_DATA_DIR: dataDir })
  return { folder, config, compiled: path.join(dataDir, 'control-plane/compiled') }
}

async function prepare(t: TestContext, config: InstanceConfig, env: NodeJS.ProcessEnv = { PATH: process.env.PATH }) {
  const prepared = await prepareService(config, planControlPlane(config, env))
  t.after(() => prepared.release())
  return prepared
}
