/** A raw client of an upgraded connection, which records what was received byte for byte. */

import { once } from 'node:events'
import net from 'node:net'
import { scaleLimit } from '@warren/kit/testing/slowness'

export type UpgradeClient = {
  socket: net.Socket
  /** Waits for the response head. */
  head(): Promise<string>
  /** Everything after the head. */
  body(): Buffer
  until(pattern: RegExp): Promise<string>
}

export function openUpgrade(
  port: number,
  line: string,
  headers: Record<string, string>,
  early: string | Buffer = '',
): UpgradeClient {
  const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true })
  socket.on('error', () => {})
  let received = Buffer.alloc(0)
  socket.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk])
  })
  const all = { Host: 'x', Connection: 'Upgrade', Upgrade: 'tcp-tunnel', ...headers }
  const head = `${line} HTTP/1.1\r\n${Object.entries(all)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('')}\r\n`
  socket.write(Buffer.concat([Buffer.from(head), Buffer.from(early)]))
  const endOfHead = () => received.indexOf('\r\n\r\n')
  const more = () => once(socket, 'data', { signal: AbortSignal.timeout(scaleLimit(30_000)) })
  const body = () => (endOfHead() === -1 ? Buffer.alloc(0) : received.subarray(endOfHead() + 4))
  return {
    socket,
    async head() {
      while (endOfHead() === -1) await more()
      return received.subarray(0, endOfHead()).toString('latin1')
    },
    body,
    async until(pattern) {
      while (!pattern.test(body().toString('latin1'))) await more()
      return body().toString('latin1')
    },
  }
}
