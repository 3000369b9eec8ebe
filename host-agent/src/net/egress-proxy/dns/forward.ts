/** Sends a DNS query to a name server of the host, once, over UDP or TCP. */
import { randomInt } from 'node:crypto'
import { createSocket } from 'node:dgram'
import { connect, isIPv6 } from 'node:net'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { isResponseTo, type Query, withId } from './message.ts'
import { readFrames, renderFrame } from './tcp-frames.ts'

/** Every query has its own random port and id, so that a third party cannot forge a response. */
export function forwardUdp(packet: Buffer, query: Query, upstream: Upstream, limitMs: number): Promise<Buffer> {
  const { promise, resolve, reject } = Promise.withResolvers<Buffer>()
  const forwarded = withId(packet, randomInt(0x1_0000))
  const socket = createSocket(isIPv6(upstream.address.split('%')[0]!) ? 'udp6' : 'udp4')
  const timer = setTimeout(() => reject(new Error(`${upstream.address} did not answer within ${limitMs} ms`)), limitMs)
  socket.on('error', reject)
  socket.on('message', (response) => {
    if (isResponseTo(response, forwarded, query)) resolve(withId(response, query.id))
  })
  socket.connect(upstream.port, upstream.address, (error?: Error) => {
    if (error) return reject(error)
    socket.send(forwarded, (failed) => failed && reject(failed))
  })
  return promise.finally(() => {
    clearTimeout(timer)
    socket.removeAllListeners('message').close()
  })
}

export async function forwardTcp(packet: Buffer, query: Query, upstream: Upstream, limitMs: number): Promise<Buffer> {
  const socket = connect({ port: upstream.port, host: upstream.address })
  const timer = setTimeout(
    () => socket.destroy(new Error(`${upstream.address} did not answer within ${limitMs} ms`)),
    limitMs,
  )
  try {
    socket.write(renderFrame(packet))
    for await (const response of readFrames(socket)) if (isResponseTo(response, packet, query)) return response
    throw new Error(`${upstream.address} closed the connection without an answer`)
  } finally {
    clearTimeout(timer)
    socket.destroy()
  }
}
