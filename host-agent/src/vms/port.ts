/** A connection from the host to a port of a sandbox. */
import net, { type Socket } from 'node:net'
import { HostError } from '../host-error.ts'
import { HOST_ADDRESS } from '../net/names.ts'

const CONNECT_LIMIT_MS = 5_000

/**
 * From the one address of the host that every sandbox may answer, whatever its egress rules say: the replies to any
 * other would be judged as if the sandbox had begun.
 */
export function connectToPort(ip: string, port: number, signal: AbortSignal): Promise<Socket> {
  const { promise, resolve, reject } = Promise.withResolvers<Socket>()
  const socket = net.connect({ host: ip, port, localAddress: HOST_ADDRESS, allowHalfOpen: true, noDelay: true })
  const fail = (why: string, cause?: unknown) => {
    socket.destroy()
    reject(new HostError('port_closed', why, { cause }))
  }
  const gone = () => fail('the caller went away')
  socket.setTimeout(CONNECT_LIMIT_MS, () => fail(`port ${port} does not answer`))
  socket.once('error', (error) => fail(`nothing listens on port ${port}`, error))
  signal.addEventListener('abort', gone, { once: true })
  socket.once('connect', () => {
    signal.removeEventListener('abort', gone)
    socket.setTimeout(0)
    socket.on('error', () => {}) // `close` follows.
    resolve(socket)
  })
  return promise
}
