/**
 * The QEMU process of a sandbox and the egress proxy run in jails, and the processes around them have the privileges that they
 * need. What the jails withstand is tested in host-agent/src/vmm/jail and host-agent/src/net.
 */
import assert from 'node:assert/strict'
import { existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import path from 'node:path'
import { describe, test } from 'node:test'
import { type CapableProcess, capabilityMask, listCapabilities } from '@warren/kit/capabilities'
import { getHostAgentPid, listVmms } from './support/instance.ts'
import { createSandbox } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const ROOT = path.resolve(import.meta.dirname, '../..')

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

describe('the QEMU process of a sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('has no privileges, no way to gain any, and shares nothing with the machine', async () => {
    await createSandbox(warren, {})
    const vmms = listVmms(warren.instance.dataDir)

    assert.ok(vmms.length > 0)
    for (const pid of vmms) {
      const status = new Map(
        readFileSync(`/proc/${pid}/status`, 'utf8')
          .split('\n')
          .map((line) => line.split(/:\s*/) as [string, string]),
      )
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) assert.match(status.get(set)!, /^0+$/, set)
      assert.equal(status.get('NoNewPrivs'), '1')
      assert.equal(status.get('Seccomp'), '2')
      assert.match(status.get('NSpid')!, /^\d+\t1$/)
      const root = readdirSync(`/proc/${pid}/root`).sort()
      assert.deepEqual(root, ['dev', 'lib', 'lib64', 'proc', 'read-only-ram.so', 'sockets', 'usr', 'work'])
      for (const name of ['net', 'mnt', 'pid', 'ipc', 'uts', 'cgroup']) {
        assert.notEqual(readlinkSync(`/proc/${pid}/ns/${name}`), readlinkSync(`/proc/self/ns/${name}`), name)
      }
      assert.deepEqual(
        readFileSync(`/proc/${pid}/net/dev`, 'utf8')
          .match(/^ *\w+(?=:)/gm)
          ?.map((name) => name.trim()),
        ['lo'],
      )
    }
    const uids = vmms.map((pid) => /^Uid:\t(\d+)/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))![1])
    assert.equal(new Set(uids).size, vmms.length)
    assert.ok(!uids.includes('0'))
  })

  test('the host agent and the processes below it have the capabilities of their table', async () => {
    const hostAgent = await getHostAgentPid(warren.instance.dataDir)
    const descendants = listDescendants(hostAgent)
    const find = (program: string) => descendants.find(({ command }) => command.includes(program))
    const processes: [CapableProcess, string, Status | undefined][] = [
      ['hostAgent', 'main.ts', readProcess(hostAgent)],
      ['netd', 'net/netd/main.ts', find('net/netd/main.ts')],
      ['launcher', 'vmm/launcher/main.ts', find('vmm/launcher/main.ts')],
    ]

    // A container may have fewer.
    const own = readSet(readFileSync('/proc/self/status', 'utf8'), 'CapBnd')
    const granted = (name: CapableProcess, program: string) =>
      capabilityMask(listCapabilities(name, path.join(ROOT, 'host-agent/src', program))) & own
    for (const [name, program, found] of processes) {
      const { status } = found!
      for (const set of ['CapBnd', 'CapPrm', 'CapEff']) {
        assert.equal(readSet(status, set), granted(name, program), `${name} ${set}`)
      }
      for (const set of ['CapInh', 'CapAmb']) assert.equal(readSet(status, set), 0n, `${name} ${set}`)
    }
    for (const { status, command } of descendants) {
      assert.equal(readSet(status, 'CapBnd') & ~granted('hostAgent', 'main.ts'), 0n, command)
    }
  })
})

describe('the egress proxy', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('has no privileges, its own user, and of the machine the network and its own code', async () => {
    const hostAgent = await getHostAgentPid(warren.instance.dataDir)

    // The jail, the first process in it, and the proxy.
    const all = listDescendants(hostAgent).filter(({ command }) => command.includes('egress-proxy/main.ts'))
    assert.equal(all.length, 3)
    for (const { status } of all) {
      for (const set of ['CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb']) assert.equal(readSet(status, set), 0n, set)
      assert.equal(readSet(status, 'NoNewPrivs'), 1n)
      assert.match(status, /^Uid:\t([1-9]\d*)\t\1\t\1\t\1$/m)
      assert.match(status, /^Gid:\t([1-9]\d*)\t\1\t\1\t\1$/m)
      assert.match(status, /^Groups:\t *$/m)
    }
    const { pid, status } = all.find((one) => /^NSpid:\t\d+\t(?!1$)\d+$/m.test(one.status))!
    assert.equal(readSet(status, 'Seccomp'), 2n)
    for (const name of ['mnt', 'pid', 'ipc', 'uts']) {
      assert.notEqual(readlinkSync(`/proc/${pid}/ns/${name}`), readlinkSync(`/proc/${hostAgent}/ns/${name}`), name)
    }
    assert.equal(readlinkSync(`/proc/${pid}/ns/net`), readlinkSync(`/proc/${hostAgent}/ns/net`))
    assert.deepEqual(readdirSync(path.join(`/proc/${pid}/root`, ROOT)).sort(), [
      ...['host-agent', 'kit', 'node_modules', 'package.json', 'protocol'],
    ])
    assert.equal(existsSync(path.join(`/proc/${pid}/root`, warren.instance.dataDir)), false)
    const [, top] = ROOT.split('/')
    for (const folder of ['var', 'run', 'sys', 'home', 'boot'].filter((name) => name !== top)) {
      assert.equal(existsSync(`/proc/${pid}/root/${folder}`), false, folder)
    }
  })
})

type Status = { pid: number; parent: number; command: string; status: string }

/** Its children and theirs. */
function listDescendants(pid: number): Status[] {
  const all = readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .flatMap((name) => readProcess(Number(name)) ?? [])
  const below = (parent: number): Status[] =>
    all.filter((one) => one.parent === parent).flatMap((one) => [one, ...below(one.pid)])
  return below(pid)
}

/** Undefined when it has just ended. */
function readProcess(pid: number): Status | undefined {
  try {
    const [status, command] = ['status', 'cmdline'].map((file) => readFileSync(`/proc/${pid}/${file}`, 'utf8')) as [
      string,
      string,
    ]
    return { pid, status, command, parent: Number(/^PPid:\t(\d+)/m.exec(status)![1]) }
  } catch {
    return undefined
  }
}

const readSet = (status: string, name: string): bigint =>
  BigInt(`0x${new RegExp(`^${name}:\t(\\w+)$`, 'm').exec(status)![1]}`)
