/**
 * What a program would try that has taken over a jailed one (jail/examples/attack), and what there is to attack: for the
 * tests of each jail.
 */
import { once } from 'node:events'
import { chmodSync, mkdtempSync, writeFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { type AddressInfo, createServer } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import type { TestContext } from 'node:test'

export const ATTACK = path.resolve(import.meta.dirname, '../../../../jail/target/warren/attack')
/** Where it is copied to in the root directory of a jail. */
export const ATTACK_IN_JAIL = '/usr/bin/attack'
/** No account of the machine has it. */
export const ATTACKER_UID = 654_321

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
  'execute a shell',
  'make an anonymous file',
  'fork',
]

/** The outcome of each attempt, by name. */
export type Outcomes = Map<string, string>

/** A folder with a secret and a socket, a port, and this process. `args` are the arguments of the attack. */
export async function openTargets(t: TestContext): Promise<{ folder: string; args: string[] }> {
  const folder = mkdtempSync(path.join(tmpdir(), 'warren-jail-'))
  chmodSync(folder, 0o755)
  const port = createServer().listen(0, '127.0.0.1')
  const socket = createServer().listen({ path: path.join(folder, 'host.sock'), writableAll: true })
  t.after(async () => {
    port.close()
    socket.close()
    await rm(folder, { recursive: true })
  })
  await Promise.all([port, socket].map((server) => once(server, 'listening')))
  writeFileSync(path.join(folder, 'secret'), 'secret', { mode: 0o600 })
  const targets = {
    pid: process.pid,
    port: (port.address() as AddressInfo).port,
    socket: path.join(folder, 'host.sock'),
    secret: path.join(folder, 'secret'),
    folder,
  }
  return { folder, args: Object.entries(targets).map(([key, value]) => `${key}=${value}`) }
}

export const parseOutcomes = (output: string): Outcomes =>
  new Map(
    output
      .trimEnd()
      .split('\n')
      .map((line) => line.split('\t') as [string, string]),
  )

export const listSuccesses = (outcomes: Outcomes): string[] =>
  [...outcomes].filter(([, outcome]) => !outcome.startsWith('denied')).map(([name, outcome]) => `${name}: ${outcome}`)

/** What the attack should have reached without a jail and did not: then it would prove nothing. */
export function listImpossible(free: Outcomes, alsoPossible: readonly string[] = []): string[] {
  const possible = new Set(listSuccesses(free).map((line) => line.slice(0, line.indexOf(':'))))
  return [...POSSIBLE_WITHOUT, ...alsoPossible].filter((name) => !possible.has(name))
}
