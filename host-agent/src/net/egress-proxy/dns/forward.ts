/** Asking a name server of the host, once, over UDP or TCP. */
import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { connect, isIPv6 } from 'node:net'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { isAnswerTo, type Query, withId } from './message.ts'
import { readFrames, renderFrame } from './tcp-frames.ts'

/** Each question has a port and a number of its own, both random, so a stranger cannot answer it blindly. */
export function forwardUdp(packet: Buffer, query: Query, upstream: Upstream, limitMs: number): Promise<Buffer> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
  const question = withId(packet, randomInt(0x1_0000))
  const socket = createSocket(isIPv6(upstream.address.split('%')[0]!) ? 'udp6' : 'udp4')
  const timer = setTimeout(() => reject(new Error(`${upstream.address} did not answer`)), limitMs)
  socket.on('error', reject)
  socket.on('message', (answer) => {
    if (isAnswerTo(answer, question, query)) resolve(withId(answer, query.id))
  })
  socket.connect(upstream.port, upstream.address, (error?: Error) => {
    if (error) return reject(error)
    socket.send(question, (failed) => failed && reject(failed))
  })
  return promise.finally(() => {
    clearTimeout(timer)
    socket.removeAllListeners('message').close()
  })
}

export async function forwardTcp(packet: Buffer, query: Query, upstream: Upstream, limitMs: number): Promise<Buffer> {
  const socket = connect({ port: upstream.port, host: upstream.address })
  const timer = setTimeout(() => socket.destroy(new Error(`${upstream.address} did not answer`)), limitMs)
  try {
    socket.write(renderFrame(packet))
    for await (const answer of readFrames(socket)) if (isAnswerTo(answer, packet, query)) return answer
    throw new Error(`${upstream.address} closed without an answer`)
  } finally {
    clearTimeout(timer)
    socket.destroy()
  }
}
