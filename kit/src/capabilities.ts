/**
 * The capabilities of Warren's processes that run as root, and why each is needed. What a process does not need is removed from its
 * bounding set before it starts, so neither it nor a program that it starts can get it, in any thread. (A process that is running
 * cannot do that to itself: capabilities belong to threads, and Node has several.)
 *
 * A child has at most what its parent has, so `hostAgent` is the union of everything that runs below it.
 * `host-agent/src/capabilities.test.ts` compares the table with the kernel's view of each process.
 */
import { statSync } from 'node:fs'
import path from 'node:path'

/** In the order of the kernel's numbers (linux/capability.h), as setpriv(1) names them. */
const NAMES = [
  ...['chown', 'dac_override', 'dac_read_search', 'fowner', 'fsetid', 'kill', 'setgid', 'setuid', 'setpcap'],
  ...['linux_immutable', 'net_bind_service', 'net_broadcast', 'net_admin', 'net_raw', 'ipc_lock', 'ipc_owner'],
  ...['sys_module', 'sys_rawio', 'sys_chroot', 'sys_ptrace', 'sys_pacct', 'sys_admin', 'sys_boot', 'sys_nice'],
  ...['sys_resource', 'sys_time', 'sys_tty_config', 'mknod', 'lease', 'audit_write', 'audit_control', 'setfcap'],
  ...['mac_override', 'mac_admin', 'syslog', 'wake_alarm', 'block_suspend', 'audit_read', 'perfmon', 'bpf'],
  'checkpoint_restore',
] as const
export type Capability = (typeof NAMES)[number]

/** Each with its reason. */
type Grant = Partial<Record<Capability, string>>

const NETD: Grant = {
  net_admin: 'links, addresses, routes, nftables, taps, and settings below /proc/sys/net',
  sys_admin: 'creates and enters network namespaces, and mounts them below /run/netns',
}

const LAUNCHER: Grant = {
  net_admin: 'attaches to taps',
  sys_admin: 'enters network namespaces; the jail makes namespaces and mounts',
  dac_override: 'opens disks and logs, which belong to the users of VMMs',
  setuid: 'the jail becomes the user of a VMM',
  setgid: 'the same for its groups',
  setpcap: 'the jail empties the bounding set of a VMM',
}

export const CAPABILITIES = {
  hostAgent: {
    ...NETD,
    ...LAUNCHER,
    chown: 'gives files to VMMs and takes them back; packages in images have owners',
    fowner: 'changes modes of files that belong to VMMs; packages in images',
    fsetid: 'packages in images have setuid and setgid files',
    kill: 'ends VMMs, which have other users',
    sys_ptrace: 'saves and restores the memory of VMMs (/proc/PID/mem, pagemap)',
    sys_chroot: 'package scripts run in the root of an image',
    sys_resource: 'limits of VMMs may be higher than those of this process',
    mknod: 'device nodes in images',
    setfcap: 'packages in images have files with capabilities',
    audit_write: 'package scripts in images add users, which is recorded where the kernel audits',
  },
  netd: NETD,
  launcher: LAUNCHER,
} satisfies Record<string, Grant>
export type CapableProcess = keyof typeof CAPABILITIES

/** The kernel's number for a set, as /proc/PID/status shows it. */
export const capabilityMask = (names: readonly Capability[]): bigint =>
  names.reduce((mask, name) => mask | (1n << BigInt(NAMES.indexOf(name))), 0n)

/** Starts programs that are confined further and need nothing from setuid files. Package scripts of images may. */
const WITHOUT_NEW_PRIVILEGES: readonly CapableProcess[] = ['netd', 'launcher']

/**
 * The command line that starts `command` as this process, if root starts it. `program`: the file that Node is to run. Where only
 * another user can read it, as in a private home directory, root needs a capability for that.
 */
export function withCapabilities(
  name: CapableProcess,
  program: string,
  command: string,
  args: readonly string[],
): [string, string[]] {
  if (process.getuid?.() !== 0) return [command, [...args]]
  const bounds = ['-all', ...listCapabilities(name, program).map((one) => `+${one}`)].join()
  const sets = ['--bounding-set', bounds, '--inh-caps=-all', '--ambient-caps=-all']
  return ['setpriv', [...sets, ...(hasNoNewPrivileges(name) ? ['--no-new-privs'] : []), '--', command, ...args]]
}

export const hasNoNewPrivileges = (name: CapableProcess): boolean => WITHOUT_NEW_PRIVILEGES.includes(name)

export function listCapabilities(name: CapableProcess, program: string): Capability[] {
  const granted = Object.keys(CAPABILITIES[name]) as Capability[]
  return granted.includes('dac_override') || isReadableByRoot(program) ? granted : [...granted, 'dac_read_search']
}

/** Without capabilities root is a user like any other. */
function isReadableByRoot(file: string): boolean {
  for (let at = path.dirname(file); ; at = path.dirname(at)) {
    if (!allowsRoot(at, 0o111)) return false
    if (at === path.dirname(at)) return allowsRoot(file, 0o444)
  }
}

function allowsRoot(file: string, bits: number): boolean {
  const { uid, gid, mode } = statSync(file)
  const own = uid === 0 ? 0o700 : gid === 0 ? 0o070 : 0o007
  return (mode & bits & own) !== 0
}
