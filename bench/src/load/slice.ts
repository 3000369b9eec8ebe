/**
 * One turn of load: every connection sends its next request when the last one is answered, without pipelining, until
 * the time is over; the clock stops when the last answer is in. Connections are open before the clock starts.
 *
 * Written on sockets, because a full HTTP client costs more per request than the servers measured with it: the faster
 * candidate would look slower than it is.
 */
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

export type Slice = {
  url: string
  headers: Record<string, string>
  /** An answer counts if it is 200 with exactly this body. */
  body: string
  connections: number
  ms: number
}
export type SliceResult = { ok: number; failed: number; elapsedMs: number }

/** A request that is not answered within this is lost. */
const ANSWER_LIMIT_MS = 10_000

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

/** A connection that breaks counts one failure and is not replaced. */
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
      socket.on('error', () => {}) // It is closed on purpose; what it still has to say does not matter.
      socket.destroy()
      resolve()
    }
    const lose = () => {
      result.failed++
      end()
    }
    socket.on('data', (chunk: Buffer) => {
      received = received.length === 0 ? chunk : Buffer.concat([received, chunk])
      const answer = parseAnswer(received)
      if (answer === undefined) return
      received = received.subarray(answer.length)
      if (answer.status === 200 && answer.body.equals(body)) result.ok++
      else result.failed++
      if (isOver()) end()
      else socket.write(request)
    })
    socket.on('error', lose)
    socket.on('close', lose)
    socket.setTimeout(ANSWER_LIMIT_MS, lose)
    socket.write(request)
  })
}

/**
 * The answer at the start of `bytes`, once it is whole. One without Content-Length is none that our servers send; it
 * counts as empty, and so as wrong.
 */
export function parseAnswer(bytes: Buffer): { status: number; body: Buffer; length: number } | undefined {
  const headLength = bytes.indexOf('\r\n\r\n') + 4
  if (headLength < 4) return undefined
  const head = bytes.toString('latin1', 0, headLength)
  const length = headLength + Number(/\r\ncontent-length: *(\d+)/i.exec(head)?.[1] ?? 0)
  if (bytes.length < length) return undefined
  return { status: Number(head.slice(9, 12)), body: bytes.subarray(headLength, length), length }
}
