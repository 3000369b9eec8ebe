/**
 * A QEMU process that a guest has taken over reaches nothing. The attacks (jail/examples/attack.rs) run where QEMU would:
 * with the same command line of the jail, a copy of its root directory and the tap of a slot. They run once more as the
 * same user without the jail, which shows that the attempts are real and that this machine has something to protect.
 */
import assert from 'node:assert/strict'
import { chmodSync, chownSync, cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { Netd } from '../../net/netd-client.ts'
import { moveToFreshHost, randomInstance, skipReason } from '../../net/testing/host.ts'
import { FDS } from '../args.ts'
import { VmmLauncher } from '../launcher-client.ts'
import type { ProgramExit } from '../launcher-protocol.ts'
import { QEMU_BINARY } from '../machine.ts'
import { JAIL_BINARY, renderJailArgs } from './options.ts'
import { ensureJailRoot } from './root.ts'

const ATTACK = path.resolve(import.meta.dirname, '../../../../jail/target/warren/attack')
const IN_JAIL = '/usr/bin/attack'
const REPORT_FD = FDS.firstLayer
/** No account of the machine has it. */
const UID = 654_321
/** What the same user can do without the jail, of each kind; on every machine that runs the tests. */
const POSSIBLE_WITHOUT = [
  'read /etc/passwd',
  'list /etc',
  'create /tmp/new',
  'create /dev/shm/new',
  'read /proc/cmdline',
  'read cmdline of it',
  'see other processes',
  'connect to port 127.0.0.1',
  'listen on all addresses',
  'open a socket for netlink',
  'listen on an abstract Unix socket and connect',
  'connect to a Unix socket outside',
  "link a file to another user's",
  'execute a shell',
  'make an anonymous file',
  'fork',
]

if (skipReason === false) before(moveToFreshHost)

test('everything that a taken over QEMU process could try fails', { skip: skipReason }, async (t) => {
  const target = await setUp(t)

  const jailed = await target.attack('jailed')
  const free = await target.attack('free')

  const successes = (outcomes: Map<string, string>) =>
    [...outcomes].filter(([, outcome]) => !outcome.startsWith('denied')).map(([name, outcome]) => `${name}: ${outcome}`)
  assert.ok(jailed.size >= 100, `${jailed.size} attempts`)
  assert.deepEqual(successes(jailed), [])
  const possible = new Set(successes(free).map((line) => line.slice(0, line.indexOf(':'))))
  assert.deepEqual(
    POSSIBLE_WITHOUT.filter((name) => !possible.has(name)),
    [],
  )
})

async function setUp(t: TestContext) {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-jail-'))
  chmodSync(folder, 0o755)
  const instance = randomInstance()
  const netd = new Netd(instance)
  const launcher = new VmmLauncher(instance)
  const exits: ProgramExit[] = []
  launcher.on('notice', ({ exited }) => exits.push(exited))
  const port = createServer().listen(0, '127.0.0.1')
  const socket = createServer().listen({ path: path.join(folder, 'host.sock'), writableAll: true })
  t.after(async () => {
    port.close()
    socket.close()
    await launcher.close()
    await netd.request('tearDownHost')
    await netd.close()
    await rm(folder, { recursive: true })
  })
  await netd.request('createSlot', { slot: 0, mtu: 1400, tapOwnerUid: UID, packetsPerSecond: 100_000 })
  const { folder: root } = await ensureJailRoot(path.join(folder, 'cache'), QEMU_BINARY)
  cpSync(ATTACK, path.join(root, IN_JAIL))
  cpSync(ATTACK, path.join(folder, 'attack'))
  const [workFolder, socketFolder] = ['work', 'sockets'].map((name) => path.join(folder, name)) as [string, string]
  for (const own of [workFolder, socketFolder]) mkdirSync(own, { mode: 0o700 })
  chownSync(workFolder, UID, UID) // The folder of the sockets belongs to root once QEMU has made them.
  writeFileSync(path.join(folder, 'secret'), 'secret', { mode: 0o600 })
  const targets = Object.entries({
    pid: process.pid,
    port: (port.address() as { port: number }).port,
    socket: path.join(folder, 'host.sock'),
    secret: path.join(folder, 'secret'),
    folder,
    fd: FDS.work,
  }).map(([key, value]) => `${key}=${value}`)

  const jail = renderJailArgs({
    ...{ root, accel: 'tcg', uid: UID, diskMib: 10_240, socketFolder, workFolder, reportFd: REPORT_FD },
    cgroupProcs: [],
    diesWithHostAgent: true,
  })
  const commands = {
    jailed: { command: JAIL_BINARY, args: [...jail, IN_JAIL, ...targets], uid: 0, gid: 0, reportFd: REPORT_FD },
    free: {
      ...{ command: path.join(folder, 'attack'), args: targets, uid: UID, gid: UID },
      files: [{ fd: FDS.work, path: workFolder, flags: 'r' as const }],
    },
  }
  return {
    /** Returns the outcome of each attempt. */
    async attack(how: keyof typeof commands): Promise<Map<string, string>> {
      const stdoutPath = path.join(folder, how)
      const { pid } = await launcher.request('spawn', {
        ...commands[how],
        ...{ slot: 0, env: {}, stdoutPath, stderrPath: path.join(folder, 'errors') },
      })
      await until(() => exits.some((exit) => exit.pid === pid))
      const lines = readFileSync(stdoutPath, 'utf8').trimEnd().split('\n')
      return new Map(lines.map((line) => line.split('\t') as [string, string]))
    },
  }
}
