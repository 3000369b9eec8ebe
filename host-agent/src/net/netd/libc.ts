/**
 * The system calls Node has no word for, by FFI. Only netd and tests import this: a mistake here kills the process.
 *
 * All are synchronous, so they act on the thread that runs JavaScript, whose network namespace is the one that counts.
 */
import { getSystemErrorName } from 'node:util'
import koffi from 'koffi'

export const CLONE_NEWNET = 0x4000_0000

const libc = koffi.load(null)
const calls = {
  setns: libc.func('int setns(int fd, int type)'),
  unshare: libc.func('int unshare(int flags)'),
  mount: libc.func('int mount(str source, str target, str type, ulong flags, void *data)'),
  umount2: libc.func('int umount2(str target, int flags)'),
  socket: libc.func('int socket(int domain, int type, int protocol)'),
  close: libc.func('int close(int fd)'),
  send: libc.func('long send(int fd, void *data, size_t length, int flags)'),
  recv: libc.func('long recv(int fd, _Out_ void *data, size_t length, int flags)'),
  ioctl: libc.func('int ioctl(int fd, ulong request, _Inout_ void *data)'),
  ioctlValue: libc.func('int ioctl(int fd, ulong request, ulong value)'),
  closeRange: libc.func('int close_range(uint first, uint last, int flags)'),
  prctl: libc.func('int prctl(int option, ulong a, ulong b, ulong c, ulong d)'),
}
const nameToIndex = libc.func('uint if_nametoindex(str name)')

/** A refused system call, with the code Node's own errors have. */
export class SystemCallError extends Error {
  readonly code: string
  constructor(call: string, code: string) {
    super(`${call}: ${code}`)
    this.code = code
  }
}

export const hasCode = (error: unknown, ...codes: string[]): boolean =>
  codes.includes((error as NodeJS.ErrnoException | undefined)?.code ?? '')

export const setns = (fd: number): void => void call('setns', fd, CLONE_NEWNET)
export const unshareNetwork = (): void => void call('unshare', CLONE_NEWNET)

const MS_BIND = 4096
const MNT_DETACH = 2
export const bindMount = (source: string, target: string): void =>
  void call('mount', source, target, 'none', MS_BIND, null)
const MS_REC = 1 << 14
const MS_SHARED = 1 << 20
/** EINVAL: nothing is mounted there. */
export const shareMount = (target: string): void => void call('mount', 'none', target, 'none', MS_SHARED | MS_REC, null)
/** The mount leaves at once; what it held is freed when its last user lets go. */
export const detachMount = (target: string): void => void call('umount2', target, MNT_DETACH)

const SOCK_CLOEXEC = 0o2000000
export const openSocket = (domain: number, type: number, protocol: number): number =>
  call('socket', domain, type | SOCK_CLOEXEC, protocol)
export const closeSocket = (fd: number): void => void call('close', fd)
export const send = (fd: number, data: Buffer): void => void call('send', fd, data, data.length, 0)
export const receive = (fd: number, into: Buffer): number => call('recv', fd, into, into.length, 0)

export const ioctlData = (fd: number, request: number, data: Buffer): void => void call('ioctl', fd, request, data)
export const ioctlValue = (fd: number, request: number, value: number): void =>
  void call('ioctlValue', fd, request, value)

/** In the namespace of this thread; 0 when there is none of that name. */
export const interfaceIndex = (name: string): number => nameToIndex(name)

/** No descriptor above stderr passes to a program we start, except those that are handed over one by one. */
export function keepDescriptorsFromChildren(): void {
  const CLOSE_RANGE_CLOEXEC = 4
  call('closeRange', 3, 0xffff_ffff, CLOSE_RANGE_CLOEXEC)
}

function call(name: keyof typeof calls, ...args: unknown[]): number {
  for (;;) {
    const answer = Number(calls[name](...args))
    if (answer >= 0) return answer
    const code = getSystemErrorName(-koffi.errno())
    if (code !== 'EINTR') throw new SystemCallError(name, code)
  }
}

const PR_SET_THP_DISABLE = 41

/**
 * For this process and all it starts. QEMU asks for huge pages for the code it translates and gets 2 MiB for every
 * handful it uses; and a huge page in a guest's memory would make a pause save 512 pages where one was written to.
 */
export function keepPagesSmall(): void {
  calls.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) // Where the kernel knows no huge pages there is nothing to disable.
}
