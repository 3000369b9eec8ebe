/**
 * Access to a guest through Warren's API, and directly through the guest agent's port without Warren. A row that
 * measures one against the other measures what Warren adds.
 */
import { once } from 'node:events'
import type { ClientHttp2Stream } from 'node:http2'
import net from 'node:net'
import type { Duplex } from 'node:stream'
import {
  createGuestConnectReader,
  GuestProcess,
  NdjsonDecoder,
  type ProcessFrame,
  type ProcessView,
} from '@warren/protocol'
import { callGuest } from '../../../host-agent/src/guest/call-guest.ts'
import type { BareVm } from '../../../host-agent/src/testing/bare-vm.ts'
import type { Api } from './api.ts'

export type GuestAccess = {
  /** Starts a process and returns its id. */
  start(body: ProcessBody): Promise<string>
  input(id: string, bytes: Buffer): Promise<void>
  /** Yields the size of each piece of output until the process exits. Throws when the stream ends without an exit. */
  connect(id: string): AsyncGenerator<number, void>
  end(id: string): Promise<void>
  tunnel(port: number): Promise<Duplex>
}
export type ProcessBody = { cmd: string; args?: string[]; pty?: object }

const RESPONSE_LIMIT_MS = 60_000

export function apiAccess(api: Api, sandboxId: string): GuestAccess {
  const at = `/v1/sandboxes/${sandboxId}`
  return {
    start: async (body) => (await api.post<ProcessView>(`${at}/processes`, body)).process_id,
    async input(id, bytes) {
      await api.post(`${at}/processes/${id}/input`, { data_base64: bytes.toString('base64') })
    },
    async *connect(id) {
      const decoder = new NdjsonDecoder()
      for await (const chunk of await api.open('GET', `${at}/processes/${id}/connect?after=0`)) {
        for (const value of decoder.push(chunk as Buffer)) {
          const frame = value as ProcessFrame
          if (frame.type === 'exit') return
          if (frame.type === 'data') yield Buffer.byteLength(frame.data_base64, 'base64')
          if (frame.type === 'error') throw new Error(frame.error)
        }
      }
      throw new Error(`the output stream of ${id} ended without an exit`)
    },
    end: async (id) => void (await api.open('DELETE', `${at}/processes/${id}?grace_ms=0`)).resume(),
    tunnel: (port) => openTunnel(api, `${at}/tunnel/${port}`),
  }
}

async function openTunnel({ url, headers }: Api, path: string): Promise<Duplex> {
  const socket = net.connect({ host: url.hostname, port: Number(url.port), noDelay: true, allowHalfOpen: true })
  const fields = { Host: url.host, Connection: 'Upgrade', Upgrade: 'tcp-tunnel', ...headers }
  const lines = Object.entries(fields).map(([name, value]) => `${name}: ${value}\r\n`)
  socket.write(`POST ${path} HTTP/1.1\r\n${lines.join('')}\r\n`)
  let received = Buffer.alloc(0)
  while (!received.includes('\r\n\r\n')) {
    const [chunk] = (await once(socket, 'data')) as [Buffer]
    received = Buffer.concat([received, chunk])
  }
  socket.pause()
  const head = received.toString('latin1')
  if (!head.startsWith('HTTP/1.1 101 ')) throw new Error(`failed to open a tunnel: ${head.slice(0, 300)}`)
  const rest = received.subarray(received.indexOf('\r\n\r\n') + 4)
  if (rest.length > 0) socket.unshift(rest)
  return socket
}

export function bareAccess({ channel: { session } }: Pick<BareVm, 'channel'>): GuestAccess {
  const request = async (method: string, path: string, body?: Buffer): Promise<ClientHttp2Stream> => {
    const stream = session.request({ ':method': method, ':path': path }, { endStream: method === 'GET' })
    if (body) stream.end(body)
    const [headers] = await once(stream, 'response')
    if (headers[':status'] !== 200)
      throw new Error(`the guest agent responded ${headers[':status']} to ${method} ${path}`)
    return stream
  }
  return {
    async start(body) {
      const startRequest = { method: 'POST', path: '/processes', body, response: GuestProcess } as const
      return (await callGuest(session, startRequest, AbortSignal.timeout(RESPONSE_LIMIT_MS))).process_id
    },
    input: async (id, bytes) => void (await request('POST', `/processes/${id}/input`, bytes)).resume(),
    async *connect(id) {
      const reader = createGuestConnectReader()
      for await (const chunk of await request('GET', `/processes/${id}/connect?after=0`)) {
        for (const { type, payload } of reader.push(chunk as Buffer)) {
          if (type === 'exit') return
          if (type === 'error') throw new Error(Buffer.from(payload).toString())
          yield payload.length - SEQ_BYTES
        }
      }
      throw new Error(`the output stream of ${id} ended without an exit`)
    },
    end: async (id) => void (await request('DELETE', `/processes/${id}?grace_ms=0`, Buffer.alloc(0))).resume(),
    tunnel: (port) => request('POST', `/tunnel?port=${port}`),
  }
}

/** The sequence number at the start of each event. */
const SEQ_BYTES = 8
