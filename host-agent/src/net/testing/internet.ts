/**
 * The internet of the tests, in a process and network namespace of its own: TCP 80 tells who called, UDP 7777
 * remembers what came, UDP and TCP 53 answer every question with 198.51.100.7.
 */
import { createSocket } from 'node:dgram'
import { createServer } from 'node:net'
import { parseQuery } from '../dns/message.ts'
import { readFrames, renderFrame } from '../dns/tcp-frames.ts'
import { unshareNetwork } from '../libc.ts'

unshareNetwork()
const seen: string[] = []
process.on('disconnect', () => process.exit())
process.on('message', () => process.send!(seen))

createServer((socket) => {
  socket.on('error', () => {})
  socket.end(`hello ${socket.remoteAddress}`)
}).listen(80, '0.0.0.0')

const counter = createSocket('udp4')
counter.on('message', (text, from) => void seen.push(`${text} from ${from.address}`))
counter.bind(7777, '0.0.0.0')

const names = createSocket('udp4')
names.on('message', (packet, from) => names.send(answer(packet), from.port, from.address))
names.bind(53, '0.0.0.0')
createServer(async (socket) => {
  socket.on('error', () => {})
  for await (const packet of readFrames(socket)) socket.write(renderFrame(answer(packet)))
}).listen(53, '0.0.0.0', () => process.send!('ready'))

/** The question, and one A record that points back to its name, for a minute. */
function answer(packet: Buffer): Buffer {
  const { head } = parseQuery(packet)!
  const record = Buffer.from([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 51, 100, 7])
  const reply = Buffer.concat([head, record])
  reply.writeUInt16BE(0x8180, 2)
  reply.writeUInt16BE(1, 6)
  reply.writeUInt32BE(0, 8)
  return reply
}
