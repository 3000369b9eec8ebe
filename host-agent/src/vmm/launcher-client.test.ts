/** The VMM launcher with real taps, in a network namespace of this test. */
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { Netd } from '../net/netd-client.ts'
import { isAlive } from '../net/testing/guest.ts'
import { moveToFreshHost, randomInstance, skipReason } from '../net/testing/host.ts'
import { JAIL_BINARY } from './jail/options.ts'
import { VmmLauncher } from './launcher-client.ts'
import type { LaunchRequest, ProgramExit } from './launcher-protocol.ts'

if (skipReason === false) before(moveToFreshHost)

test('a program inherits the tap and no other descriptor, and outlives the launcher', {
  skip: skipReason,
}, async (t) => {
  const { netd, launcher, folder, request } = await setUp(t)
  const { pid } = await launcher.request('spawn', {
    ...request,
    command: '/bin/sh',
    args: ['-c', 'id; ls -l /proc/$$/fd; echo done; exec sleep 60'],
    uid: 1234,
    gid: 1234,
    env: { PATH: '/usr/bin:/bin' },
    stdoutPath: join(folder, 'out'),
  })
  t.after(() => process.kill(pid, 'SIGKILL'))
  const output = () => readFileSync(join(folder, 'out'), 'utf8')
  await until(() => output().includes('done'))

  process.kill(launcher.pid!, 'SIGKILL')
  const { freed } = await netd.request('releaseSlot', { slot: 0 })

  assert.match(output(), /^uid=1234 gid=1234 groups=1234$/m)
  assert.deepEqual(
    [...output().matchAll(/ (\d+) -> /g)].map(([, fd]) => fd),
    ['0', '1', '2', '3'],
  )
  assert.match(output(), / 3 -> \/dev\/net\/tun/)
  assert.equal(isAlive(pid), true)
  assert.equal(freed, false)
})

test('the exit of a program and a failed start are reported', { skip: skipReason }, async (t) => {
  const { launcher, request } = await setUp(t)
  const exits: ProgramExit[] = []
  launcher.on('notice', ({ exited }) => exits.push(exited))

  const { pid } = await launcher.request('spawn', { ...request, command: '/bin/sh', args: ['-c', 'exit 7'] })
  await until(() => exits.length > 0)

  assert.deepEqual(exits, [{ pid, code: 7, signal: null }])
  await assert.rejects(launcher.request('spawn', { ...request, command: '/no/such', args: [] }), /failed to start/)
})

test('a jailed program belongs to the launcher: its exit is reported, and why it could not start', {
  skip: skipReason,
}, async (t) => {
  const { netd, launcher, folder, request } = await setUp(t)
  const exits: ProgramExit[] = []
  launcher.on('notice', ({ exited }) => exits.push(exited))
  const root = join(folder, 'root')
  for (const name of ['proc', ...PROGRAM_FOLDERS]) mkdirSync(join(root, name), { recursive: true })
  const jail = ['--root', root, '--uid', '1234', '--gid', '1234', '--report', '4']
  const programs = PROGRAM_FOLDERS.flatMap((name) => ['--read', name, name])
  let slot = request.slot
  const spawnJailed = async (options: string[], script: string) => {
    // A tap is free only when the process that had it is gone, which can be after its report.
    await netd.request('createSlot', { ...SLOT, slot: ++slot })
    return launcher.request('spawn', {
      ...request,
      slot,
      command: JAIL_BINARY,
      args: [...jail, ...programs, ...options, '--', '/bin/sh', '-c', script],
      reportFd: 4,
      stdoutPath: join(folder, 'out'),
    })
  }

  const failed = await spawnJailed([], 'echo $$; exit 7')
  const killed = await spawnJailed([], 'kill -KILL $$; exec sleep 60')
  process.kill(killed.pid, 'SIGKILL')
  await until(() => exits.length === 2)

  assert.equal(readFileSync(join(folder, 'out'), 'utf8'), '1\n')
  assert.deepEqual(
    exits.toSorted((a, b) => a.pid - b.pid),
    [
      { pid: failed.pid, code: 7, signal: null },
      { pid: killed.pid, code: null, signal: 'SIGKILL' },
    ],
  )
  await assert.rejects(
    spawnJailed(['--cgroup', join(folder, 'no/procs')], 'true'),
    /the jail failed to join the cgroup/,
  )
  await assert.rejects(spawnJailed(['--read', folder, '/no/such'], 'true'), /the jail failed to mount .* as \/no\/such/)
  await assert.rejects(spawnJailed(['--uid', '0'], 'true'), /exited without a report/)
})

test('after the launcher is killed, the next request starts another one', { skip: skipReason }, async (t) => {
  const { launcher, request } = await setUp(t)
  await launcher.request('ready')
  const firstPid = launcher.pid!
  const deaths: unknown[] = []
  launcher.on('died', (exit) => deaths.push(exit))

  process.kill(firstPid, 'SIGKILL')
  await launcher.request('ready')
  const { pid } = await launcher.request('spawn', { ...request, ...SLEEP })

  assert.notEqual(launcher.pid, firstPid)
  assert.deepEqual(deaths, [{ code: null, signal: 'SIGKILL' }])
  assert.equal(isAlive(pid), true)
  process.kill(pid, 'SIGKILL')
})

test('a request during which the launcher dies fails, unless it is safe to repeat', { skip: skipReason }, async (t) => {
  const { launcher, request } = await setUp(t)
  await launcher.request('ready')

  process.kill(launcher.pid!, 'SIGSTOP')
  const spawn = launcher.request('spawn', { ...request, ...SLEEP })
  const ready = launcher.request('ready')
  process.kill(launcher.pid!, 'SIGKILL')

  await assert.rejects(spawn, /the VMM launcher (died \(SIGKILL\)|exited)/)
  assert.equal(await ready, null)
})

test('the launcher of a killed host agent exits, and the next one waits for it', { skip: skipReason }, async (t) => {
  const { launcher, instance } = await setUp(t)
  const owner = fork(join(import.meta.dirname, 'testing/launcher-owner-program.ts'), [instance])
  const [orphanPid] = (await once(owner, 'message')) as [number]

  owner.kill('SIGKILL')
  await launcher.request('ready')

  assert.equal(isAlive(orphanPid), false)
})

const PROGRAM_FOLDERS = ['/bin', '/lib', '/lib64', '/usr'].filter((folder) => existsSync(folder))
const SLOT = { mtu: 1400, tapOwnerUid: 1000, packetsPerSecond: 100_000 }
const SLEEP = { command: '/bin/sleep', args: ['60'] }

async function setUp(t: TestContext) {
  const folder = mkdtempSync(join(tmpdir(), 'warren-launcher-'))
  const instance = randomInstance()
  const netd = new Netd(instance)
  const launcher = new VmmLauncher(instance)
  t.after(async () => {
    await launcher.close()
    await netd.request('tearDownHost')
    await netd.close()
    await rm(folder, { recursive: true })
  })
  await netd.request('createSlot', { ...SLOT, slot: 0 })
  const request = { slot: 0, uid: 0, gid: 0, env: {}, stderrPath: join(folder, 'err') }
  return { netd, launcher, instance, folder, request: request satisfies Partial<LaunchRequest> }
}
