/** What can be asked of a host agent (protocol/host-api.ts). Answers are checked before anybody sees them. */
import type { ClientHttp2Stream, IncomingHttpHeaders, IncomingHttpStatusHeader } from 'node:http2'
import {
  HostFailure,
  type HostGuestRoute,
  HostNetworks,
  HostState,
  type HostVmCreateBody,
  HostVmCreated,
  type HostVmForkBody,
  HostVmForked,
  HostVmNetworkApplied,
  type HostVmNetworkBody,
  HostVmNetworkReport,
  type HostVmPauseBody,
  HostVmPaused,
  type HostVmResumeBody,
  HostVmResumed,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { HostError } from './failure.ts'
import { createHostSession, resetStream } from './session.ts'

/** A state with thousands of VMs is a few hundred KiB; more is nonsense. */
const ANSWER_MAX_BYTES = 16 * 1024 * 1024
/** It is in the memory of the agent: an answer later than this is no heartbeat. */
const STATE_LIMIT_MS = 2_000
/** Ends a QEMU and takes down what was around it. */
const DELETE_LIMIT_MS = 20_000
/** The host gives up by itself at `limit_ms`; this is for a host that hangs. */
const GRACE_MS = 1_000
/** A copy by reference; of a running source also the saving of it. */
const FORK_LIMIT_MS = 20_000
/** One transaction in the kernel; of a thousand rules some 50 ms. */
const NETWORK_LIMIT_MS = 5_000

/** The host gives a port 5 s to answer. */
const PORT_LIMIT_MS = 7_000

export type ResponseHeaders = IncomingHttpHeaders & IncomingHttpStatusHeader

export type GuestRequest = {
  method: 'GET' | 'PUT' | 'POST' | 'DELETE'
  route: HostGuestRoute
  /** What follows the route, of segments that need no encoding: `/proc_1/wait`. */
  below?: string
  query?: Record<string, string>
}

export type HostClient = ReturnType<typeof createHostClient>

export function createHostClient(address: string) {
  const session = createHostSession(address)

  async function ask<Answer extends TSchema>(
    method: string,
    path: string,
    answer: Answer,
    limit: { ms: number; signal?: AbortSignal | undefined },
    body?: unknown,
  ): Promise<Static<Answer>> {
    const deadline = AbortSignal.timeout(limit.ms)
    const signal = limit.signal ? AbortSignal.any([limit.signal, deadline]) : deadline
    return asHostError(`${method} ${path}`, async () => {
      const stream = session.open({ ':method': method, ':path': path }, signal, { endStream: body === undefined })
      if (body !== undefined) stream.end(JSON.stringify(body))
      const headers = await responseOf(stream, signal)
      const value = parseJson(await readAll(stream, ANSWER_MAX_BYTES, signal))
      if (headers[':status'] !== 200) throw toHostError(value, headers[':status'])
      if (!Value.Check(answer, value)) throw new HostError('internal', `${method} ${path}: the answer does not fit`)
      return value as Static<Answer>
    })
  }

  return {
    address,

    getState: (signal?: AbortSignal): Promise<HostState> =>
      ask('GET', '/v1/host', HostState, { ms: STATE_LIMIT_MS, signal }),

    createVm: (body: HostVmCreateBody, signal: AbortSignal): Promise<HostVmCreated> =>
      ask('POST', '/v1/vms', HostVmCreated, { ms: body.limit_ms + GRACE_MS, signal }, body),

    pauseVm: (id: string, body: HostVmPauseBody, signal?: AbortSignal): Promise<HostVmPaused> =>
      ask('POST', `/v1/vms/${id}/pause`, HostVmPaused, { ms: body.limit_ms + GRACE_MS, signal }, body),

    resumeVm: (id: string, body: HostVmResumeBody, signal?: AbortSignal): Promise<HostVmResumed> =>
      ask('POST', `/v1/vms/${id}/resume`, HostVmResumed, { ms: body.limit_ms + GRACE_MS, signal }, body),

    forkVm: (id: string, body: HostVmForkBody, signal?: AbortSignal): Promise<HostVmForked> =>
      ask('POST', `/v1/vms/${id}/forks`, HostVmForked, { ms: FORK_LIMIT_MS, signal }, body),

    putNetwork: (id: string, body: HostVmNetworkBody, signal?: AbortSignal): Promise<HostVmNetworkApplied> =>
      ask('PUT', `/v1/vms/${id}/network`, HostVmNetworkApplied, { ms: NETWORK_LIMIT_MS, signal }, body),

    getNetwork: (id: string, signal?: AbortSignal): Promise<HostVmNetworkReport> =>
      ask('GET', `/v1/vms/${id}/network`, HostVmNetworkReport, { ms: NETWORK_LIMIT_MS, signal }),

    listNetworks: (signal?: AbortSignal): Promise<HostNetworks> =>
      ask('GET', '/v1/networks', HostNetworks, { ms: NETWORK_LIMIT_MS, signal }),

    async deleteVm(id: string, fence: number, signal?: AbortSignal): Promise<void> {
      await ask('DELETE', `/v1/vms/${id}?fence=${fence}`, EMPTY, { ms: DELETE_LIMIT_MS, signal })
    },

    /** A stream to the guest's agent and back; the caller reads the answer with `responseOf`, or resets it. */
    openGuest(
      id: string,
      { method, route, below = '', query = {} }: GuestRequest,
      signal: AbortSignal,
    ): ClientHttp2Stream {
      const pairs = Object.entries(query).map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
      const path = `/v1/vms/${id}/guest/${route}${below}${pairs.length > 0 ? `?${pairs.join('&')}` : ''}`
      try {
        return session.open({ ':method': method, ':path': path }, signal, {
          endStream: method === 'GET' || method === 'DELETE',
        })
      } catch (error) {
        throw unreachable(`${method} ${path}`, error)
      }
    },

    /** A connection to a port of a VM; rejects with `port_closed` when nobody listens there. */
    openPort(id: string, port: number, gone: AbortSignal): Promise<ClientHttp2Stream> {
      const what = `POST /v1/vms/${id}/ports/${port}`
      return asHostError(what, async () => {
        const late = AbortSignal.any([gone, AbortSignal.timeout(PORT_LIMIT_MS)])
        const stream = session.open({ ':method': 'POST', ':path': `/v1/vms/${id}/ports/${port}` }, gone)
        try {
          const headers = await Promise.race([responseOf(stream, late), rejected(late)])
          if (headers[':status'] === 200) return stream
          throw toHostError(parseJson(await readAll(stream, ANSWER_MAX_BYTES, late)), headers[':status'])
        } catch (error) {
          resetStream(stream)
          throw error
        }
      })
    },

    close: () => session.close(),
  }
}

function rejected(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) return reject(signal.reason)
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

const EMPTY = { type: 'object' } as const satisfies TSchema

/** The head of the answer; rejects when the stream ends without one. */
export function responseOf(stream: ClientHttp2Stream, signal: AbortSignal): Promise<ResponseHeaders> {
  const { promise, resolve, reject } = Promise.withResolvers<ResponseHeaders>()
  const closed = () => reject(signal.aborted ? signal.reason : new Error('the stream was closed without an answer'))
  stream.once('response', resolve)
  stream.once('error', reject)
  stream.once('close', closed)
  return promise.finally(() => {
    stream.off('error', reject)
    stream.off('close', closed)
  })
}

/** The whole answer. What is larger than it can honestly be is given up before it is held. */
export async function readAll(stream: ClientHttp2Stream, maxBytes: number, signal: AbortSignal): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > maxBytes) {
      resetStream(stream)
      throw new Error(`an answer is larger than ${maxBytes} bytes`)
    }
    chunks.push(chunk)
  }
  signal.throwIfAborted()
  if (stream.rstCode !== 0) throw new Error('the answer was cut')
  return Buffer.concat(chunks)
}

export function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8'))
  } catch {
    return undefined // Fits no schema, so whoever asked says what it should have been.
  }
}

function toHostError(value: unknown, status: number | undefined): HostError {
  if (Value.Check(HostFailure, value)) return new HostError(value.code, value.message)
  return new HostError('internal', `the host answered ${status} without a reason`)
}

async function asHostError<T>(what: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw unreachable(what, error)
  }
}

const unreachable = (what: string, error: unknown): HostError =>
  error instanceof HostError ? error : new HostError('unreachable', `${what}: no answer`, { cause: error })
