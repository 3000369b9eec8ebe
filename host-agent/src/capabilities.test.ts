/** netd and the VMM launcher run as root, with the capabilities that kit/src/capabilities.ts grants them, in every thread. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { chmodSync, chownSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { capabilityMask, listCapabilities, withCapabilities } from '@warren/kit/capabilities'
import { Netd } from './net/netd-client.ts'
import { moveToFreshHost, randomInstance, skipReason } from './net/testing/host.ts'
import { runCommandOrThrow } from './run-command.ts'
import { VmmLauncher } from './vmm/launcher-client.ts'

const ATTACK = path.join(import.meta.dirname, 'net/testing/netd-attack-program.ts')
const NETD = path.join(import.meta.dirname, 'net/netd/main.ts')
/** No account of the machine has it. */
const UID = 654_321

if (skipReason === false) before(moveToFreshHost)

test('netd and the VMM launcher have the capabilities of their table, in every thread', {
  skip: skipReason,
}, async (t) => {
  const instance = randomInstance()
  const [netd, launcher] = [new Netd(instance), new VmmLauncher(instance)]
  t.after(() => Promise.all([netd.close(), launcher.close()]))
  await netd.request('listSlots')
  await launcher.request('ready')

  // A container may have fewer.
  const own = readSet('/proc/self/status', 'CapBnd')
  for (const [name, pid] of [
    ['netd', netd.pid],
    ['launcher', launcher.pid],
  ] as const) {
    const granted = capabilityMask(listCapabilities(name, NETD)) & own
    const threads = readdirSync(`/proc/${pid}/task`).map((thread) => `/proc/${pid}/task/${thread}/status`)
    assert.ok(threads.length > 1)
    for (const thread of threads) {
      for (const set of ['CapBnd', 'CapPrm', 'CapEff']) assert.equal(readSet(thread, set), granted, `${name} ${set}`)
      for (const set of ['CapInh', 'CapAmb']) assert.equal(readSet(thread, set), 0n, `${name} ${set}`)
      assert.equal(readSet(thread, 'NoNewPrivs'), 1n, name)
    }
  }
})

test('a taken over netd cannot end or trace others, load modules, change owners or become another user', {
  skip: skipReason,
}, async (t) => {
  const targets = setUp(t)
  const node = [process.execPath, ATTACK, ...targets] as const

  const [command, args] = withCapabilities('netd', NETD, node[0], node.slice(1))
  const confined = await attack(command, args)
  const free = await attack(node[0], node.slice(1))

  assert.ok(Object.keys(confined).length >= 20)
  const select = (outcomes: Record<string, string>, codes: string[], isIn: boolean) =>
    Object.entries(outcomes).filter(([, outcome]) => codes.includes(outcome) === isIn)
  // ENOSYS: this kernel has no modules, or no such ports.
  assert.deepEqual(select(confined, ['EPERM', 'EACCES', 'ENOSYS'], false), [])
  // Each is refused by the confinement alone.
  assert.deepEqual(select(free, ['EPERM', 'EACCES'], true), [])
})

async function attack(command: string, args: readonly string[]): Promise<Record<string, string>> {
  const { stdout } = await runCommandOrThrow(command, [...args])
  return JSON.parse(stdout) as Record<string, string>
}

/** A process of another user, and a folder of that user. */
function setUp(t: TestContext): [string, string] {
  const base = mkdtempSync(path.join(tmpdir(), 'warren-netd-attack-'))
  const folder = path.join(base, 'private')
  mkdirSync(folder)
  writeFileSync(path.join(folder, 'secret'), 'secret', { mode: 0o600 })
  for (const file of [path.join(folder, 'secret'), folder]) chownSync(file, UID, UID)
  chmodSync(folder, 0o700)
  const victim = spawn('sleep', ['infinity'], { uid: UID, gid: UID, stdio: 'ignore' })
  t.after(() => {
    victim.kill('SIGKILL')
    rmSync(base, { recursive: true })
  })
  return [`${victim.pid}`, folder]
}

const readSet = (file: string, name: string): bigint =>
  BigInt(`0x${new RegExp(`^${name}:\t(\\w+)$`, 'm').exec(readFileSync(file, 'utf8'))![1]}`)
