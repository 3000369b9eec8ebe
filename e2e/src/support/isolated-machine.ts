/**
 * A machine of its own for a test file about the network: its process, and with it the box it starts, moves into fresh
 * network and mount namespaces, in which the only uplink leads to an internet that the test made. No packet of a guest
 * leaves these, and all of it ends with the processes.
 *
 *   internet  198.18.5.5, 10.9.9.9, … on lo │ up1 198.18.0.1/24 ── up0 198.18.0.2/24, mtu 1400  machine
 *
 * What the internet offers, and remembers, is told in the program itself (INTERNET).
 */
import { type ChildProcess, execFileSync, fork } from 'node:child_process'
import { once } from 'node:events'
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { ROOT } from './instance.ts'

const INTERNET = path.join(ROOT, 'host-agent/src/net/testing/internet.ts')
const MOVED = 'WARREN_E2E_OWN_MACHINE'

export const UPLINK = { name: 'up0', address: '198.18.0.2', mtu: 1400 }
export const NAME_SERVER = '198.18.0.1'
/** Has no name; answers at every port the internet knows. */
export const PUBLIC_HOST = '198.18.5.5'
/** All of them answer: only rules keep a sandbox away. */
export const PRIVATE_HOSTS = ['10.9.9.9', '172.20.0.1', '192.168.7.7', '169.254.169.254', '100.127.0.1']
/** Web servers that tell by which address and name they were called. */
export const SHOP = '198.18.6.6'
export const WILD = '198.18.6.7'
export const EVIL = '198.18.6.66'
/** For rules about addresses. */
export const RULED = ['198.18.9.9', '198.18.9.10', '198.18.10.1', '198.18.10.2'] as const

/** At the top of a test file, before anything else: this process begins again in the namespaces. */
export function moveToIsolatedMachine(): void {
  if (process.env[MOVED] === undefined) {
    const namespaces = ['unshare', '--net', '--mount', '--propagation', 'slave']
    const again = [process.execPath, ...process.execArgv, process.argv[1]!]
    // Typed as absent where a platform has none; this is Linux.
    process.execve!('/usr/bin/env', ['env', ...namespaces, ...again], { ...process.env, [MOVED]: 'yes' })
  }
  runCommand('ip link set lo up')
  // Names of namespaces that a killed box leaves go with this mount, and those of others are not seen.
  mkdirSync('/run/netns', { recursive: true })
  runCommand('mount -t tmpfs -o mode=755 names /run/netns')
}

export class Internet {
  readonly #child: ChildProcess

  private constructor(child: ChildProcess) {
    this.#child = child
  }

  /** With the uplink to it, and its name server as the machine's own. */
  static async start(): Promise<Internet> {
    const child = fork(INTERNET)
    after(() => void child.kill('SIGKILL'))
    await once(child, 'message')
    const there = `nsenter -t ${child.pid} -n`
    runCommand(`ip link add up0 mtu ${UPLINK.mtu} type veth peer name up1 mtu ${UPLINK.mtu} netns ${child.pid}`)
    runCommand(`ip addr add ${UPLINK.address}/24 dev up0`)
    runCommand('ip link set up0 up')
    runCommand(`${there} ip addr add ${NAME_SERVER}/24 dev up1`)
    runCommand(`${there} ip link set up1 up`)
    runCommand(`${there} ip link set lo up`)
    for (const address of [PUBLIC_HOST, ...PRIVATE_HOSTS, SHOP, WILD, EVIL, ...RULED]) {
      runCommand(`${there} ip addr add ${address}/32 dev lo`)
    }
    runCommand(`${there} ip route add blackhole default`)
    runCommand(`ip route add default via ${NAME_SERVER}`)
    const folder = mkdtempSync(path.join(tmpdir(), 'warren-e2e-machine-'))
    after(() => rmSync(folder, { recursive: true }))
    writeFileSync(path.join(folder, 'resolv.conf'), `nameserver ${NAME_SERVER}\n`)
    runCommand(`mount --bind ${folder}/resolv.conf /etc/resolv.conf`)
    return new Internet(child)
  }

  /** What it heard, after the first so many: datagrams as `text from address`, requests, questions. */
  async seen(after = 0): Promise<string[]> {
    this.#child.send(after)
    const [seen] = await once(this.#child, 'message')
    return seen as string[]
  }
}

/** A command as a test writes it: words between spaces. */
export function runCommand(line: string): string {
  const [name, ...args] = line.split(' ')
  return execFileSync(name!, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
}
