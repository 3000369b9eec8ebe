/** Sockets of families that Node does not know, such as netlink, and the index of an interface. */
import { bindFunction, bindSystemCall } from './system-call.ts'

const SOCK_CLOEXEC = 0o2000000

const socket = bindSystemCall('int socket(int domain, int type, int protocol)')
const close = bindSystemCall('int close(int fd)')
const sendCall = bindSystemCall('long send(int fd, void *data, size_t length, int flags)')
const recv = bindSystemCall('long recv(int fd, _Out_ void *data, size_t length, int flags)')
const nameToIndex = bindFunction('uint if_nametoindex(str name)')

export const openSocket = (domain: number, type: number, protocol: number): number =>
  socket(domain, type | SOCK_CLOEXEC, protocol)

export const closeSocket = (fd: number): void => void close(fd)
export const send = (fd: number, data: Buffer): void => void sendCall(fd, data, data.length, 0)

/** Returns the number of bytes received. */
export const receive = (fd: number, into: Buffer): number => recv(fd, into, into.length, 0)

/** In the network namespace of this thread; 0 when no interface has that name. */
export const interfaceIndex = (name: string): number => Number(nameToIndex(name))
