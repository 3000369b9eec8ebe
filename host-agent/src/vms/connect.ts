/** A TCP connection from the host to a port of a running sandbox. It ends when the sandbox is paused or deleted. */
import net, { type Socket } from 'node:net'
import { HostError } from '../host-error.ts'
import { HOST_ADDRESS } from '../net/names.ts'
import { type Entry, getLive } from './entries.ts'
import { toStored } from './record.ts'

/** Per sandbox: anyone who knows its name can open connections to it. */
const CONNECTIONS_MAX = 1024
const CONNECT_LIMIT_MS = 5_000

export async function connectToVm(entry: Entry, port: number, signal: AbortSignal): Promise<Socket> {
  getLive(entry)
  if (entry.connections.size + entry.connecting >= CONNECTIONS_MAX) {
    throw new HostError('too_many_streams', `${CONNECTIONS_MAX} connections to ports of ${entry.id} are open`)
  }
  entry.connecting++
  const ip = toStored(entry.record)?.ip ?? ''
  const connection = await connectToPort(ip, port, signal).finally(() => entry.connecting--)
  entry.connections.add(connection)
  connection.once('close', () => entry.connections.delete(connection))
  if (entry.record.state !== 'running') connection.destroy()
  return connection
}

/**
 * From the one address of the host that every sandbox may reply to whatever its egress rules are. Replies to any other
 * address would be checked as if the sandbox had opened the connection.
 */
function connectToPort(ip: string, port: number, signal: AbortSignal): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const socket = net.connect({ host: ip, port, localAddress: HOST_ADDRESS, allowHalfOpen: true, noDelay: true })
  const fail = (why: string, cause?: unknown) => {
    socket.destroy()
    reject(new HostError('port_closed', why, { cause }))
  }
  const onAbort = () => fail('the caller disconnected')
  socket.setTimeout(CONNECT_LIMIT_MS, () => fail(`port ${port} does not answer`))
  socket.once('error', (error) => fail(`nothing listens on port ${port}`, error))
  signal.addEventListener('abort', onAbort, { once: true })
  socket.once('connect', () => {
    signal.removeEventListener('abort', onAbort)
    socket.setTimeout(0)
    socket.on('error', () => {}) // `close` follows and is handled.
    resolve(socket)
  })
  return promise
}
