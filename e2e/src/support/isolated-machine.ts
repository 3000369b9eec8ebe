/**
 * An isolated machine for a test file about the network: its process, and with it the Warren that it starts, moves into
 * new network and mount namespaces, whose only uplink leads to an internet made by the test. No packet of a guest leaves
 * them, and everything disappears with the processes.
 *
 *   internet  203.0.113.5, 10.9.9.9, … on lo │ up1 198.51.100.129/25 ── up0 198.51.100.130/25, mtu 1400  machine
 *
 * The servers of that internet, and what they record, are described in the program itself (internet-program.ts).
 */
import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { ROOT } from './instance.ts'

const INTERNET = path.join(ROOT, 'host-agent/src/net/testing/internet-program.ts')
/** Set in the process that runs in the namespaces. */
const MOVED = 'WARREN_E2E_ISOLATED'

export const UPLINK = { name: 'up0', address: '198.51.100.130', mtu: 1400 }
export const NAME_SERVER = '198.51.100.129'
/** Has no name; responds at every port that the internet serves. */
export const PUBLIC_HOST = '203.0.113.5'
/** All of them respond: only egress rules keep a sandbox away. */
export const PRIVATE_HOSTS = ['10.9.9.9', '172.20.0.1', '192.168.7.7', '169.254.169.254', '100.127.0.1']
/** Web servers whose responses name the address and the host that were requested. */
export const SHOP = '192.0.2.6'
export const WILD = '192.0.2.7'
export const EVIL = '192.0.2.66'
/** For rules about addresses. */
export const RULED = ['203.0.113.9', '203.0.113.10', '203.0.113.129', '203.0.113.130'] as const

/** Called at the top of a test file, before anything else: restarts this process in the namespaces. */
export function moveToIsolatedMachine(): void {
  if (process.env[MOVED] === undefined) {
    const namespaces = ['unshare', '--net', '--mount', '--propagation', 'slave']
    const again = [process.execPath, ...process.execArgv, process.argv[1]!]
    // Typed as absent where a platform has none; this is Linux.
    process.execve!('/usr/bin/env', ['env', ...namespaces, ...again], { ...process.env, [MOVED]: 'yes' })
  }
  runCommand('ip link set lo up')
  // Named namespaces that a killed Warren leaves behind disappear with this mount, and those of others are hidden.
  mkdirSync('/run/netns', { recursive: true })
  runCommand('mount -t tmpfs -o mode=755 names /run/netns')
}

export class Internet {
  readonly #child: ChildProcess

  private constructor(child: ChildProcess) {
    this.#child = child
  }

  /** Also creates the uplink to it and makes its name server the machine's. */
  static async start(): Promise<Internet> {
    const child = fork(INTERNET)
    after(() => void child.kill('SIGKILL'))
    await once(child, 'message')
    const inside = `nsenter -t ${child.pid} -n`
    runCommand(`ip link add up0 mtu ${UPLINK.mtu} type veth peer name up1 mtu ${UPLINK.mtu} netns ${child.pid}`)
    runCommand(`ip addr add ${UPLINK.address}/25 dev up0`)
    runCommand('ip link set up0 up')
    runCommand(`${inside} ip addr add ${NAME_SERVER}/25 dev up1`)
    runCommand(`${inside} ip link set up1 up`)
    runCommand(`${inside} ip link set lo up`)
    for (const address of [PUBLIC_HOST, ...PRIVATE_HOSTS, SHOP, WILD, EVIL, ...RULED]) {
      runCommand(`${inside} ip addr add ${address}/32 dev lo`)
    }
    runCommand(`${inside} ip route add blackhole default`)
    runCommand(`ip route add default via ${NAME_SERVER}`)
    const folder = mkdtempSync(path.join(tmpdir(), 'warren-e2e-machine-'))
    after(() => rmSync(folder, { recursive: true }))
    writeFileSync(path.join(folder, 'resolv.conf'), `nameserver ${NAME_SERVER}\n`)
    runCommand(`mount --bind ${folder}/resolv.conf /etc/resolv.conf`)
    return new Internet(child)
  }

  /** What it received, after the first `after` entries: datagrams as `text from address`, HTTP requests, DNS queries. */
  async listReceived(after = 0): Promise<string[]> {
    this.#child.send(after)
    const [received] = await once(this.#child, 'message')
    return received as string[]
  }
}

/** Runs a command whose arguments are separated by spaces. */
export function runCommand(line: string): string {
  const [name, ...args] = line.split(' ')
  return execFileSync(name!, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}
