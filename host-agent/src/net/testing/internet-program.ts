/**
 * The internet of the tests, in a process and network namespace of its own. Everything it hears it remembers
 * (`seen`): a number as a message is answered with what came from that place on.
 *
 *   tcp 80 at NAMED addresses    a small HTTP server: answers with the address that was called and the Host that was meant
 *   tcp 80 elsewhere             tells who called
 *   tcp 443                      answers the first bytes with the address that was called
 *   tcp 9000                     ticks for as long as it can
 *   udp 443, 7777                nothing but remembering; udp 9001 answers each with many
 *   udp and tcp 53               names of NAMES, and 198.51.100.7 for every other
 */
import { createSocket } from 'node:dgram'
import { createServer, type Socket } from 'node:net'
import { parseQuery, renderAddresses } from '../egress-proxy/dns/message.ts'
import { readFrames, renderFrame } from '../egress-proxy/dns/tcp-frames.ts'
import { unshareNetwork } from '../netd/libc.ts'
import { addressesOf, NAMED_PREFIX } from './internet-names.ts'

const TICK_MS = 10

unshareNetwork()
const seen: string[] = []
process.on('disconnect', () => process.exit())
process.on('message', (from) => process.send!(seen.slice(from as number)))

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
      const answer = `${socket.localAddress} as ${/^host: *(.*)$/im.exec(head)?.[1] ?? 'nobody'}`
      seen.push(`http ${answer}`)
      socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${answer.length}\r\n\r\n${answer}`)
    }
  })
})

listen(443, (socket) =>
  socket.once('data', () => {
    seen.push(`tls ${socket.localAddress}`)
    socket.write(`tls ${socket.localAddress}`)
  }),
)

listen(9000, (socket) => {
  const timer = setInterval(() => socket.write('tick\n'), TICK_MS)
  socket.once('close', () => clearInterval(timer))
  socket.on('data', () => {})
})

for (const port of [443, 7777]) {
  const counter = createSocket('udp4')
  counter.on('message', (text, from) => void seen.push(`${text} from ${from.address}`))
  counter.bind(port, '0.0.0.0')
}

const chatty = createSocket('udp4')
chatty.on('message', (_, from) => setInterval(() => chatty.send('tick\n', from.port, from.address), TICK_MS))
chatty.bind(9001, '0.0.0.0')

const names = createSocket('udp4')
names.on('message', (packet, from) => names.send(answer(packet), from.port, from.address))
names.bind(53, '0.0.0.0')
listen(53, async (socket) => {
  for await (const packet of readFrames(socket)) socket.write(renderFrame(answer(packet)))
}).once('listening', () => process.send!('ready'))

/** Every type of record is an address here: what counts is whether the question came. */
function answer(packet: Buffer): Buffer {
  const query = parseQuery(packet)!
  seen.push(`asked ${query.name} ${query.type}`)
  return renderAddresses(query, addressesOf(query.name), 60)
}
