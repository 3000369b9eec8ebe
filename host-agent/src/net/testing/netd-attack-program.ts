/**
 * What netd would try if it were taken over: `netd-attack-program.ts VICTIM FOLDER`. VICTIM is a process of another user, FOLDER
 * belongs to that user and has a file `secret`. Prints each attempt with the error number's name, or `done`, as JSON.
 *
 * Every attempt is harmless if it succeeds, or lacks an argument that is checked after the permission.
 */
import { chmodSync, chownSync, openSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { bindSystemCall } from '../../ffi/system-call.ts'

const [, , victim, folder] = process.argv as [string, string, string, string]
const secret = join(folder, 'secret')

const systemCall = bindSystemCall('long syscall(long number, long a, long b, long c, long d)')
const chroot = bindSystemCall('int chroot(const char *path)')
const mknod = bindSystemCall('int mknod(const char *path, uint mode, ulong device)')
const socket = bindSystemCall('int socket(int family, int kind, int protocol)')
const setns = bindSystemCall('int setns(int fd, int type)')
const nice = bindSystemCall('int setpriority(int which, uint who, int value)')

const X64 = process.arch === 'x64'
const NR = X64
  ? { ptrace: 101, setuid: 105, setgroups: 116, initModule: 175, reboot: 169, iopl: 172 }
  : { ptrace: 117, setuid: 146, setgroups: 159, initModule: 105, reboot: 142, iopl: -1 }
const PTRACE_SEIZE = 0x4206
const PTRACE_DETACH = 17
const [AF_INET, AF_PACKET, SOCK_RAW] = [2, 17, 3]
const S_IFBLK = 0o60000
const CLONE_NEWNS = 0x20000

const call = (number: number, ...args: number[]): unknown =>
  systemCall(number, args[0] ?? 0, args[1] ?? 0, args[2] ?? 0, 0)

/** Those that change this process are last. */
const attempts: Record<string, () => unknown> = {
  'end a VMM': () => process.kill(Number(victim), 0),
  'trace a VMM': () => {
    call(NR.ptrace, PTRACE_SEIZE, Number(victim))
    call(NR.ptrace, PTRACE_DETACH, Number(victim))
  },
  'read the memory of a VMM': () => openSync(`/proc/${victim}/mem`, 'r'),
  'write the memory of the host agent': () => openSync(`/proc/${process.ppid}/mem`, 'r+'),
  'see the files of the host agent': () => statSync(`/proc/${process.ppid}/root/etc`),
  'read a file of another user': () => readFileSync(secret),
  'write a file of another user': () => writeFileSync(secret, 'changed', { flag: 'r+' }),
  'create a file in a folder of another user': () => writeFileSync(join(folder, 'new'), ''),
  'change the mode of a file of another user': () => chmodSync(folder, 0o700),
  'give a file away': () => chownSync('/proc/self/fd/1', 1, 1),
  'make a device node': () => mknod(join(folder, '..', 'node'), S_IFBLK | 0o600, 0),
  'load a kernel module': () => call(NR.initModule),
  'restart the machine': () => call(NR.reboot),
  ...(X64 && { "use the machine's ports": () => call(NR.iopl, 3) }),
  'send raw packets': () => socket(AF_PACKET, SOCK_RAW, 0),
  'send raw IP': () => socket(AF_INET, SOCK_RAW, 255),
  'run before all others': () => nice(0, 0, -10),
  'take other groups': () => call(NR.setgroups, 0, 0),
  'enter the mounts of another process': () => setns(openSync(`/proc/${process.ppid}/ns/mnt`, 'r'), CLONE_NEWNS),
  'change the root': () => chroot('/'),
  'become another user': () => call(NR.setuid, 1),
}

const outcomes: Record<string, string> = { 'listen on a port of the system': await listenOnSystemPort() }
for (const [name, attempt] of Object.entries(attempts)) {
  try {
    attempt()
    outcomes[name] = 'done'
  } catch (error) {
    outcomes[name] = (error as NodeJS.ErrnoException).code ?? String(error)
  }
}
process.stdout.write(JSON.stringify(outcomes))

function listenOnSystemPort(): Promise<string> {
  const { promise, resolve } = Promise.withResolvers<string>()
  const server = createServer()
  server.once('error', (error: NodeJS.ErrnoException) => resolve(error.code!)) // Node sets it.
  server.listen(79, '127.0.0.1', () => server.close(() => resolve('done')))
  return promise
}
