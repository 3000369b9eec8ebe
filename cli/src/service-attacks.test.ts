/**
 * A control plane, PostgreSQL or gateway that was taken over reaches nothing but itself. The attacks run where the service would:
 * in the jail that its start prepares. They run once more as services ran before they had jails, which shows that the
 * attempts are real.
 */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { claimServiceIds } from '@warren/kit/confine/claim-ids'
import { confine } from '@warren/kit/confine/confine'
import { endProcesses, handOver } from '@warren/kit/confine/hand-over'
import { serviceUser } from '@warren/kit/confine/services'
import { postgresConfinement } from '@warren/kit/postgres/server'
import {
  type AttackTargets,
  attackAsMappedRoot,
  attackInJail,
  HARMLESS,
  listSuccesses,
  MACHINE_TARGETS,
  runAttack,
} from '@warren/kit/testing/service-attacks'
import { ROOT, readInstanceConfig } from './config.ts'
import { prepareService } from './confined-service.ts'
import { planControlPlane } from './control-plane.ts'
import { giveKeys } from './data-layout.ts'
import { planGatewayService } from './gateway.ts'

const skip = process.getuid?.() !== 0 && 'needs root'
/** The control plane and the gateway serve and call others on the network of the machine (SECURITY.md). */
const ON_THE_NETWORK = [
  'connect to port 127.0.0.1',
  'see the connections of the machine',
  'connect to an abstract Unix socket outside',
]
/** What was possible as root's user id, on every machine that runs the tests. */
const POSSIBLE_BEFORE = [
  ...['read the password hashes', 'create a scheduled task', 'create a program on the PATH', 'write the accounts'],
  ...['write the source of the host agent', 'write the packages', 'read files of the database'],
  ...["read the gateway's key", 'write the record of the launcher', 'list snapshots of sandboxes'],
  ...['connect to the control socket of another program', 'signal a process outside', 'signal its thread'],
  ...['see other processes', 'read cmdline of it', 'read environ of it'],
  ...['list /root', 'list /sys', 'list /run', 'read /proc/cmdline'],
]

test('a control plane that was taken over reaches nothing but its own keys and the network', { skip }, async (t) => {
  const it = await setUp(t)
  const env = {
    PATH: process.env.PATH,
    DATABASE_URL: '',
    WARREN_HOST_SOCKET: path.join(it.dataDir, 'host-socket/host.sock'),
  }
  mkdirSync(path.join(it.dataDir, 'host-socket'))
  await giveKeys(it.config)
  const prepared = await prepareService(it.config, planControlPlane(it.config, env))
  t.after(() => prepared.release())
  const targets = { ...it.targets, 'write:own keys': path.join(it.dataDir, 'control-plane/local.key') }

  const jailed = await runAttack(attackInJail([prepared.command, prepared.args], targets), prepared.env)
  const before = await runAttack(attackAsMappedRoot(targets), prepared.env)

  expectDenied(jailed, [...HARMLESS, ...ON_THE_NETWORK, 'write own keys'])
  assert.ok(jailed.has('write own keys') && !jailed.get('write own keys')!.startsWith('denied'))
  const possible = new Set(listSuccesses(before))
  assert.deepEqual(
    POSSIBLE_BEFORE.filter((name) => !possible.has(name)),
    [],
  )
})

test('a PostgreSQL that was taken over reaches nothing but its own files, and no network', { skip }, async (t) => {
  const it = await setUp(t)
  const user = serviceUser((await claimServiceIds(it.dataDir))!, 'postgres')
  const own = path.join(it.dataDir, 'postgres')
  await handOver(user, [own])
  const confinement = postgresConfinement(user, [], [own])
  const targets = { ...it.targets, 'read:keys of the control plane': path.join(it.dataDir, 'local.key') }
  delete (targets as AttackTargets)['read:files of the database']

  const jailed = await runAttack(attackInJail(confine(confinement, '/bin/sh', []), targets), { PATH: process.env.PATH })

  expectDenied(jailed, HARMLESS)
})

test('a gateway that was taken over reaches nothing but its own files and the network', { skip }, async (t) => {
  const it = await setUp(t)
  const env = { PATH: process.env.PATH, DATABASE_URL: '', WARREN_GATEWAY_KEY_FILE: it.config.gatewayKeyFile }
  const prepared = await prepareService(it.config, planGatewayService(it.config, env))
  t.after(() => prepared.release())
  const { "read:the gateway's key": own, ...others } = it.targets
  const targets = {
    ...others,
    'read:own data': own!,
    'read:the key of the local user': path.join(it.dataDir, 'local.key'),
    'read:the key that encrypts secrets': path.join(it.dataDir, 'control-plane/secrets.key'),
  }

  const jailed = await runAttack(attackInJail([prepared.command, prepared.args], targets), prepared.env)

  expectDenied(jailed, [...HARMLESS, ...ON_THE_NETWORK, 'read own data'])
  assert.ok(jailed.has('read own data') && !jailed.get('read own data')!.startsWith('denied'))
})

/** If the code is below it, there is a folder with nothing in it but the next one on the way. */
const ON_THE_WAY = ['list /root', 'list the home of root']

function expectDenied(outcomes: Map<string, string>, allowed: readonly string[]): void {
  if (ROOT.startsWith('/root/')) for (const name of ON_THE_WAY) assert.match(outcomes.get(name)!, /^DONE "?1"?$/)
  const isAllowed = (name: string) => allowed.includes(name) || (ROOT.startsWith('/root/') && ON_THE_WAY.includes(name))
  const attempts = [...outcomes.keys()].filter((name) => !isAllowed(name))
  assert.ok(attempts.length >= 90, `${attempts.length} attempts`)
  assert.deepEqual(
    listSuccesses(outcomes).filter((name) => !isAllowed(name)),
    [],
  )
}

async function setUp(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-attacks-'))
  const dataDir = path.join(folder, 'data')
  for (const name of ['postgres', 'gateway', 'control-plane', 'snapshots', 'log'])
    mkdirSync(path.join(dataDir, name), { recursive: true })
  for (const file of [
    'postgres/PG_VERSION',
    'gateway/secrets.key',
    'control-plane/secrets.key',
    'instance.json',
    'local.key',
    'log/postgres.log',
  ]) {
    writeFileSync(path.join(dataDir, file), `skp_${'0'.repeat(64)}\n`, { mode: 0o600 })
  }
  const victim = spawn('sleep', ['1000'])
  const port = createServer().listen(0, '127.0.0.1')
  const socket = createServer().listen(path.join(folder, 'control.sock'))
  const abstract = `warren-attacks-${process.pid}`
  const named = createServer().listen({ path: `\0${abstract}` })
  await Promise.all(
    [port, socket, named].filter((server) => !server.listening).map((server) => once(server, 'listening')),
  )
  const config = readInstanceConfig({ WARREN_DATA_DIR: dataDir })
  t.after(async () => {
    victim.kill()
    port.close()
    socket.close()
    named.close()
    const ids = await claimServiceIds(dataDir)
    for (const service of ['postgres', 'control-plane', 'gateway'] as const)
      await endProcesses(serviceUser(ids!, service))
    await rm(folder, { recursive: true })
  })
  const data = (name: string) => path.join(dataDir, name)
  const code = (name: string) => path.join(ROOT, name)
  const targets: AttackTargets = {
    ...MACHINE_TARGETS,
    pid: victim.pid!,
    port: (port.address() as { port: number }).port,
    abstract,
    secret: data('instance.json'),
    folder: data('snapshots'),
    'read:files of the database': data('postgres/PG_VERSION'),
    "read:the gateway's key": data('gateway/secrets.key'),
    'read:the record of the launcher': data('instance.json'),
    'write:the record of the launcher': data('instance.json'),
    'read:logs of PostgreSQL': data('log/postgres.log'),
    'list:snapshots of sandboxes': data('snapshots'),
    'create:a file in the data directory': dataDir,
    'write:the source of the host agent': code('host-agent/src/main.ts'),
    'write:own source': code('control-plane/src/main.ts'),
    'write:the packages': code('node_modules/pg/package.json'),
    'write:the jail': code('jail/target/warren/jail'),
    'create:a file beside the source': code('control-plane/src'),
    'list:the history of the code': code('.git'),
    'connect:to the control socket of another program': path.join(folder, 'control.sock'),
  }
  assert.ok(existsSync(code('node_modules/pg/package.json')))
  return { dataDir, config, targets }
}
