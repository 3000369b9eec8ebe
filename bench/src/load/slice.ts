/**
 * One turn of load: every connection sends its next request when the previous one has its response, without pipelining,
 * until the time is over; the clock stops at the last response. Connections are open before the clock starts.
 *
 * Written on sockets, because a full HTTP client costs more per request than the servers that are measured with it: the
 * faster candidate would look slower than it is.
 */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

export type Slice = {
  url: string
  headers: Record<string, string>
  /** A response counts if it is 200 with exactly this body. */
  body: string
  connections: number
  ms: number
}
export type SliceResult = { ok: number; failed: number; elapsedMs: number }

/** A request without a response after this time counts as failed. */
const RESPONSE_LIMIT_MS = 10_000

export async function runSlice(slice: Slice): Promise<SliceResult> {
  const url = new URL(slice.url)
  const sockets = await Promise.all(Array.from({ length: slice.connections }, () => openSocket(url)))
  const request = renderRequest(url, slice.headers)
  const body = Buffer.from(slice.body)
  const result: SliceResult = { ok: 0, failed: 0, elapsedMs: 0 }

  const startedAt = performance.now()
  const isOver = () => performance.now() - startedAt >= slice.ms
  await Promise.all(sockets.map((socket) => repeat(socket, request, body, isOver, result)))
  result.elapsedMs = performance.now() - startedAt
  return result
}

async function openSocket(url: URL): Promise<Socket> {
  const socket = connect({ host: url.hostname, port: Number(url.port), noDelay: true })
  await once(socket, 'connect')
  return socket
}

function renderRequest(url: URL, headers: Record<string, string>): Buffer {
  const fields = Object.entries({ Host: url.host, ...headers }).map(([name, value]) => `${name}: ${value}\r\n`)
  return Buffer.from(`GET ${url.pathname}${url.search} HTTP/1.1\r\n${fields.join('')}\r\n`)
}

/** A connection that breaks counts as one failure and is not replaced. */
function repeat(
  socket: Socket,
  request: Buffer,
  body: Buffer,
  isOver: () => boolean,
  result: SliceResult,
): Promise<void> {
  return new Promise((resolve) => {
    let received: Buffer = Buffer.alloc(0)
    const end = () => {
      socket.removeAllListeners()
      socket.on('error', () => {}) // Closed on purpose: later errors do not matter.
      socket.destroy()
      resolve()
    }
    const fail = () => {
      result.failed++
      end()
    }
    socket.on('data', (chunk: Buffer) => {
      received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
      const response = parseResponse(received)
      if (response === undefined) return
      received = received.subarray(response.length)
      if (response.status === 200 && response.body.equals(body)) result.ok++
      else result.failed++
      if (isOver()) end()
      else socket.write(request)
    })
    socket.on('error', fail)
    socket.on('close', fail)
    socket.setTimeout(RESPONSE_LIMIT_MS, fail)
    socket.write(request)
  })
}

/**
 * The response at the start of `bytes`, or undefined while it is incomplete. Our servers always send Content-Length; a
 * response without it is taken as empty and so counts as failed.
 */
export function parseResponse(bytes: Buffer): { status: number; body: Buffer; length: number } | undefined {
  const headLength = bytes.indexOf('\r\n\r\n') + 4
  if (headLength < 4) return undefined
  const head = bytes.toString('latin1', 0, headLength)
  const length = headLength + Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0)
  if (bytes.length < length) return undefined
  return { status: Number(head.slice(9, 12)), body: bytes.subarray(headLength, length), length }
}
