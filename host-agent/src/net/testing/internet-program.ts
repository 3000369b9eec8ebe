/**
 * The internet of the tests, in a separate process and network namespace. It records what it receives. A
 * message from the parent is the number of entries that it has already; it is answered with the entries after them.
 *
 *   tcp 80 at NAMED_PREFIX…      a small HTTP server: answers with its own address and the Host of the request
 *   tcp 80 elsewhere             answers with the address of the client
 *   tcp 443                      answers the first bytes with its own address
 *   tcp 9000                     sends ticks until the connection closes
 *   udp 443, 7777                records datagrams
 *   udp 9001                     answers a datagram with ticks
 *   udp and tcp 53               resolves the names of internet-names.ts, and every other one to 198.51.100.7
 */
import { createSocket } from 'node:dgram'
import { createServer, type Socket } from 'node:net'
import { unshareNetwork } from '../../ffi/network-namespace.ts'
import { parseQuery, renderAddresses } from '../egress-proxy/dns/message.ts'
import { readFrames, renderFrame } from '../egress-proxy/dns/tcp-frames.ts'
import { NAMED_PREFIX, resolveName } from './internet-names.ts'

const TICK_MS = 10

unshareNetwork()
const received: string[] = []
process.on('disconnect', () => process.exit())
process.on('message', (known: number) => process.send!(received.slice(known)))

const listen = (port: number, serve: (socket: Socket) => void) =>
  createServer((socket) => {
    socket.on('error', () => {})
    serve(socket)
  }).listen(port, '0.0.0.0')

listen(80, (socket) => {
  if (!socket.localAddress?.startsWith(NAMED_PREFIX)) return void socket.end(`hello ${socket.remoteAddress}`)
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk.toString('latin1')
    for (let end = text.indexOf('\r\n\r\n'); end >= 0; end = text.indexOf('\r\n\r\n')) {
      const [head, rest] = [text.slice(0, end), text.slice(end + 4)]
      text = rest
      const response = `${socket.localAddress} as ${/^host: *(.*)$/im.exec(head)?.[1] ?? 'no host'}`
      received.push(`http ${response}`)
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${response.length}\r\n\r\n${response}`)
    }
  })
})

listen(443, (socket) =>
  socket.once('data', () => {
    received.push(`tls ${socket.localAddress}`)
    socket.write(`tls ${socket.localAddress}`)
  }),
)

listen(9000, (socket) => {
  const timer = setInterval(() => socket.write('tick\n'), TICK_MS)
  socket.once('close', () => clearInterval(timer))
  socket.on('data', () => {})
})

for (const port of [443, 7777]) {
  const recorder = createSocket('udp4')
  recorder.on('message', (text, from) => void received.push(`${text} from ${from.address}`))
  recorder.bind(port, '0.0.0.0')
}

const ticker = createSocket('udp4')
ticker.on('message', (_, from) => setInterval(() => ticker.send('tick\n', from.port, from.address), TICK_MS))
ticker.bind(9001, '0.0.0.0')

const names = createSocket('udp4')
names.on('message', (packet, from) => names.send(resolve(packet), from.port, from.address))
names.bind(53, '0.0.0.0')
listen(53, async (socket) => {
  for await (const packet of readFrames(socket)) socket.write(renderFrame(resolve(packet)))
}).once('listening', () => process.send!('ready'))

/** Every record type is answered with addresses: the tests check only whether the query arrived. */
function resolve(packet: Buffer): Buffer {
  const query = parseQuery(packet)!
  received.push(`queried ${query.name} ${query.type}`)
  return renderAddresses(query, resolveName(query.name), 60)
}
