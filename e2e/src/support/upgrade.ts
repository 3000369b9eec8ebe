/** Shells and tunnels: connections to the API that are upgraded. */
import net from 'node:net'
import { until } from '@warren/kit/testing/until'
import type { Target } from './sandboxes.ts'

export type Upgraded = {
  socket: net.Socket
  /** Of the response. */
  status: string | undefined
  /** What was received after the head of the response. */
  body(): Buffer
}

/** Upgrades a connection and reads the head of the response. `early` is sent right after the request. */
export async function upgrade(
  { instance }: Target,
  sandboxId: string,
  path: string,
  early: Uint8Array | string = '',
  key = instance.key,
): Promise<Upgraded> {
  const { hostname, port } = new URL(instance.baseUrl)
  const socket = net.connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  socket.on('error', () => {})
  let received = Buffer.alloc(0)
  socket.on('data', (chunk: Buffer) => {
    received = Buffer.concat([received, chunk])
  })
  const head = `POST /v1/sandboxes/${sandboxId}${path} HTTP/1.1\r\nHost: x\r\nX-Api-Key: ${key}\r\n`
  socket.write(
    Buffer.concat([Buffer.from(`${head}Connection: Upgrade\r\nUpgrade: tcp-tunnel\r\n\r\n`), Buffer.from(early)]),
  )
  await until(() => received.includes('\r\n\r\n'), 'the head of the response')
  return {
    socket,
    status: received.toString('latin1').split(' ')[1],
    body: () => received.subarray(received.indexOf('\r\n\r\n') + 4),
  }
}
