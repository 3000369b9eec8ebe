/**
 * A machine for network tests: the test process moves into a new network namespace, which is then "the host", and a child
 * creates another one, which is "the internet". No packet of a test leaves them, and both end with the process.
 *
 *   internet  203.0.113.5, 10.9.9.9, … on lo │ up1 198.51.100.129/25 ── up0 198.51.100.130/25, mtu 1400  host
 */
import { type ChildProcess, fork } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { join } from 'node:path'
import { recordInstance } from '@warren/kit/testing/ledger'
import { unshareNetwork } from '../../ffi/network-namespace.ts'
import { runCommandOrThrow } from '../../run-command.ts'
import { EVIL, RULED, SHOP, WILD } from './internet-names.ts'

export const PUBLIC_HOST = '203.0.113.5'
/** All of them answer in the internet of the tests, so only rules keep a sandbox from reaching them. */
export const PRIVATE_HOSTS = ['10.9.9.9', '172.20.0.1', '192.168.7.7', '169.254.169.254', '100.127.0.1']
/** The address from which a socket that is bound to all addresses answers. */
export const NAME_SERVER = { address: '198.51.100.129', port: 53 }
export const WEB_PORT = 80
export const UPLINK = { name: 'up0', address: '198.51.100.130', mtu: 1400 }

/** For `skip`: the reason why these tests cannot run here, or false. */
export const skipReason = process.getuid?.() === 0 ? false : 'needs root'

export function randomInstance(): string {
  const instance = randomBytes(4).toString('hex')
  recordInstance(instance)
  return instance
}

/** Runs a command line, split at spaces, and returns its output. */
export const runLine = async (line: string): Promise<string> => {
  const [name, ...args] = line.split(' ')
  return (await runCommandOrThrow(name!, args)).stdout // A line has a first word.
}

export async function moveToFreshHost(): Promise<void> {
  unshareNetwork()
  await runLine('ip link set lo up')
}

export class Internet {
  readonly #child: ChildProcess

  private constructor(child: ChildProcess) {
    this.#child = child
  }

  static async start(): Promise<Internet> {
    const child = fork(join(import.meta.dirname, 'internet-program.ts'))
    await once(child, 'message')
    const inside = `nsenter -t ${child.pid} -n`
    await runLine(`ip link add up0 mtu ${UPLINK.mtu} type veth peer name up1 mtu ${UPLINK.mtu} netns ${child.pid}`)
    await runLine(`ip addr add ${UPLINK.address}/25 dev up0`)
    await runLine('ip link set up0 up')
    await runLine(`${inside} ip addr add ${NAME_SERVER.address}/25 dev up1`)
    await runLine(`${inside} ip link set up1 up`)
    await runLine(`${inside} ip link set lo up`)
    const addresses = [PUBLIC_HOST, ...PRIVATE_HOSTS, SHOP, WILD, EVIL, ...RULED]
    for (const address of addresses) await runLine(`${inside} ip addr add ${address}/32 dev lo`)
    await runLine(`${inside} ip route add blackhole default`)
    await runLine(`ip route add default via ${NAME_SERVER.address}`)
    return new Internet(child)
  }

  /** Runs a command line in its namespace: there it is a machine on the network of the host's uplink. */
  run(line: string): Promise<string> {
    return runLine(`nsenter -t ${this.#child.pid} -n ${line}`)
  }

  /** What it received so far: datagrams as `text from address`, requests and queries (internet-program.ts). */
  async received(): Promise<string[]> {
    this.#child.send(0)
    const [received] = await once(this.#child, 'message')
    return received as string[]
  }

  stop(): void {
    this.#child.kill('SIGKILL')
  }
}
