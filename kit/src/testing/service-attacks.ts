/**
 * What a service that was taken over would try (jail/examples/attack), for the tests of each service's jail. Attempts
 * have names; their outcome is `denied` with a reason, or what was reached.
 */
import { execFile } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import { JAIL_BINARY } from '../confine/confine.ts'

const run = promisify(execFile)
const ATTACK = path.join(path.dirname(JAIL_BINARY), 'attack')

/** `read:the password hashes`: `/etc/shadow`. The kinds are read, write, list, create and connect. */
export type AttackTargets = Record<string, string | number>

/**
 * What every service may do: it is harmless, because it has its own root directory, processes and IPC objects. The files
 * of /etc are made for it, and the folders are empty and private.
 */
export const HARMLESS = [
  ...['read /etc/passwd', 'list /etc', 'list /tmp', 'list /dev/shm', 'create /tmp/new', 'create /dev/shm/new'],
  ...['read /dev/urandom', 'execute a shell', 'fork', 'make an anonymous file', 'share memory', 'make a message queue'],
  // In a namespace with nothing else in it, or on the network of the machine, where services serve.
  ...['listen on an abstract Unix socket and connect', 'open a socket for netlink', 'listen on all addresses'],
  ...['send a datagram', 'lock memory without limit', 'open it as a descriptor'],
]

/** Files and programs of the machine that are worth an attack, whatever the service is. */
export const MACHINE_TARGETS: AttackTargets = {
  'read:the password hashes': '/etc/shadow',
  'read:the list of accounts that may become root': '/etc/sudoers',
  'list:the home of root': '/root',
  'create:a scheduled task': '/etc/cron.d',
  'create:a system service': '/etc/systemd/system',
  'create:a program on the PATH': '/usr/local/bin',
  'create:a file beside the libraries': '/usr/lib',
  'write:the accounts': '/etc/passwd',
  'write:the names of hosts': '/etc/hosts',
  'write:the resolver': '/etc/resolv.conf',
  'list:the runtime files of the machine': '/run',
  'list:devices of the kernel': '/sys',
  'list:logs of the machine': '/var/log',
  'write:the setting of core dumps': '/proc/sys/kernel/core_pattern',
  'write:the trigger of the kernel': '/proc/sysrq-trigger',
}

/** The command line of the attack in a jail, made of the one that starts the service. */
export function attackInJail([command, args]: [string, readonly string[]], targets: AttackTargets): [string, string[]] {
  const options = args.slice(0, args.indexOf('--'))
  // No other program has the user of the service.
  return [command, [...options, '--read', ATTACK, ATTACK, '--', ATTACK, ...renderTargets({ ...targets, flood: 'yes' })]]
}

/** As services ran before they had jails: without capabilities, but for the kernel as the user root. */
export const attackAsMappedRoot = (targets: AttackTargets): [string, string[]] => [
  'unshare',
  ['--user', '--map-user=65534', '--map-group=65534', '--', ATTACK, ...renderTargets(targets)],
]

const renderTargets = (targets: AttackTargets): string[] =>
  Object.entries(targets).map(([key, value]) => `${key}=${value}`)

/** Returns the outcome of each attempt. */
export async function runAttack(
  [command, args]: [string, string[]],
  env: NodeJS.ProcessEnv,
): Promise<Map<string, string>> {
  const { stdout } = await run(command, args, { env })
  const lines = stdout.trimEnd().split('\n')
  return new Map(lines.map((line) => line.split('\t') as [string, string]))
}

/** The names of attempts that reached something. */
export const listSuccesses = (outcomes: Map<string, string>): string[] =>
  [...outcomes].filter(([, outcome]) => !outcome.startsWith('denied')).map(([name]) => name)
