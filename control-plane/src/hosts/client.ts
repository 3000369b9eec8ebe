/** Client of a host agent (protocol/src/host-api.ts). Responses are checked against their schemas. */
import type { ClientHttp2Stream, IncomingHttpHeaders, IncomingHttpStatusHeader } from 'node:http2'
import { matches } from '@warren/kit/matches'
import {
  HOST_MOUNTS_LIMIT_MS,
  HostBuild,
  type HostBuildBody,
  type HostBuildCancelBody,
  HostBuildLog,
  type HostBuildLogQuery,
  HostFailure,
  type HostGuestRoute,
  HostMetrics,
  HostMounts,
  HostNetworks,
  HostState,
  type HostVmCreateBody,
  HostVmCreated,
  type HostVmForkBody,
  HostVmForked,
  HostVmMetrics,
  HostVmMountsApplied,
  type HostVmMountsBody,
  HostVmMountsReport,
  HostVmNetworkApplied,
  type HostVmNetworkBody,
  HostVmNetworkReport,
  type HostVmPauseBody,
  HostVmPaused,
  type HostVmResizeBody,
  HostVmResized,
  type HostVmResumeBody,
  HostVmResumed,
  HostVmSeries,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import { HostError } from './host-error.ts'
import { createHostSession, resetStream } from './session.ts'

/** A state with thousands of VMs is a few hundred KiB; anything larger is invalid. */
const RESPONSE_MAX_BYTES = 16 * 1024 * 1024
/** The state is in the agent's memory, so a slower response is treated as no heartbeat. */
const STATE_TIMEOUT_MS = 2_000
/** Time to stop a QEMU process and remove its resources. */
const DELETE_TIMEOUT_MS = 20_000
/** The host has its own timeout, `limit_ms`; this is for a host that hangs. */
const GRACE_MS = 1_000
/** Time for a copy by reference; a running source is saved first. */
const FORK_TIMEOUT_MS = 20_000
/** Time for one kernel transaction; a thousand rules take about 50 ms. */
const NETWORK_TIMEOUT_MS = 5_000
/** Longer than a guest has for it, so that a request is not given up and repeated while the host works on it. */
const MOUNTS_TIMEOUT_MS = HOST_MOUNTS_LIMIT_MS + 10_000
/** The host answers without its guests. */
const MOUNTS_REPORT_TIMEOUT_MS = 2_000
/** The host answers without its guests. Callers see zeros instead of waiting longer. */
const METRICS_TIMEOUT_MS = 2_000

/** Time to write a record, or to read one. */
const BUILD_TIMEOUT_MS = 10_000
/** Time to stop the QEMU process of a build, or a step of packing that cannot be interrupted, and to remove what it left. */
const BUILD_CANCEL_TIMEOUT_MS = 60_000

/** The host waits up to 5 s for a port to accept. */
const PORT_TIMEOUT_MS = 7_000

export type ResponseHeaders = IncomingHttpHeaders & IncomingHttpStatusHeader

export type GuestRequest = {
  method: 'GET' | 'PUT' | 'POST' | 'DELETE'
  route: HostGuestRoute
  /** The path after the route, with segments that need no encoding: `/proc_1/wait`. */
  subpath?: string
  query?: Record<string, string>
}

export type HostClient = ReturnType<typeof createHostClient>

export function createHostClient(address: string) {
  const session = createHostSession(address)

  async function request<Schema extends TSchema>(
    method: string,
    path: string,
    schema: Schema,
    limit: { ms: number; signal?: AbortSignal | undefined },
    body?: unknown,
  ): Promise<Static<Schema>> {
    const deadline = AbortSignal.timeout(limit.ms)
    const signal = limit.signal ? AbortSignal.any([limit.signal, deadline]) : deadline
    return asHostError(`${method} ${path}`, async () => {
      const stream = session.open({ ':method': method, ':path': path }, signal, { endStream: body === undefined })
      if (body !== undefined) stream.end(JSON.stringify(body))
      const headers = await waitForHeaders(stream, signal)
      const value = parseJson(await readBody(stream, RESPONSE_MAX_BYTES, signal))
      if (headers[':status'] !== 200) throw toHostError(value, headers[':status'])
      if (!matches(schema, value))
        throw new HostError('internal', `${method} ${path}: the response does not match its schema`)
      return value as Static<Schema>
    })
  }

  return {
    address,

    getState: (signal?: AbortSignal): Promise<HostState> =>
      request('GET', '/v1/host', HostState, { ms: STATE_TIMEOUT_MS, signal }),

    getMetrics: (limitMs: number): Promise<HostMetrics> => request('GET', '/v1/metrics', HostMetrics, { ms: limitMs }),

    createVm: (body: HostVmCreateBody, signal: AbortSignal): Promise<HostVmCreated> =>
      request('POST', '/v1/vms', HostVmCreated, { ms: body.limit_ms + GRACE_MS, signal }, body),

    pauseVm: (id: string, body: HostVmPauseBody, signal?: AbortSignal): Promise<HostVmPaused> =>
      request('POST', `/v1/vms/${id}/pause`, HostVmPaused, { ms: body.limit_ms + GRACE_MS, signal }, body),

    resumeVm: (id: string, body: HostVmResumeBody, signal?: AbortSignal): Promise<HostVmResumed> =>
      request('POST', `/v1/vms/${id}/resume`, HostVmResumed, { ms: body.limit_ms + GRACE_MS, signal }, body),

    forkVm: (id: string, body: HostVmForkBody, signal?: AbortSignal): Promise<HostVmForked> =>
      request('POST', `/v1/vms/${id}/forks`, HostVmForked, { ms: FORK_TIMEOUT_MS, signal }, body),

    resizeVm: (id: string, body: HostVmResizeBody, signal?: AbortSignal): Promise<HostVmResized> =>
      request('POST', `/v1/vms/${id}/resize`, HostVmResized, { ms: body.limit_ms + GRACE_MS, signal }, body),

    putNetwork: (id: string, body: HostVmNetworkBody, signal?: AbortSignal): Promise<HostVmNetworkApplied> =>
      request('PUT', `/v1/vms/${id}/network`, HostVmNetworkApplied, { ms: NETWORK_TIMEOUT_MS, signal }, body),

    getNetwork: (id: string, signal?: AbortSignal): Promise<HostVmNetworkReport> =>
      request('GET', `/v1/vms/${id}/network`, HostVmNetworkReport, { ms: NETWORK_TIMEOUT_MS, signal }),

    setMounts: (id: string, body: HostVmMountsBody, signal?: AbortSignal): Promise<HostVmMountsApplied> =>
      request('PUT', `/v1/vms/${id}/mounts`, HostVmMountsApplied, { ms: MOUNTS_TIMEOUT_MS, signal }, body),

    getMounts: (id: string, signal?: AbortSignal): Promise<HostVmMountsReport> =>
      request('GET', `/v1/vms/${id}/mounts`, HostVmMountsReport, { ms: MOUNTS_REPORT_TIMEOUT_MS, signal }),

    listMounts: (signal?: AbortSignal): Promise<HostMounts> =>
      request('GET', '/v1/mounts', HostMounts, { ms: MOUNTS_REPORT_TIMEOUT_MS, signal }),

    getVmMetrics: (id: string): Promise<HostVmMetrics> =>
      request('GET', `/v1/vms/${id}/metrics`, HostVmMetrics, { ms: METRICS_TIMEOUT_MS }),

    getVmSeries: (id: string): Promise<HostVmSeries> =>
      request('GET', `/v1/vms/${id}/metrics/series`, HostVmSeries, { ms: METRICS_TIMEOUT_MS }),

    listNetworks: (signal?: AbortSignal): Promise<HostNetworks> =>
      request('GET', '/v1/networks', HostNetworks, { ms: NETWORK_TIMEOUT_MS, signal }),

    async deleteVm(id: string, fence: number, signal?: AbortSignal): Promise<void> {
      await request('DELETE', `/v1/vms/${id}?fence=${fence}`, EMPTY, { ms: DELETE_TIMEOUT_MS, signal })
    },

    startBuild: (id: string, body: HostBuildBody, signal?: AbortSignal): Promise<HostBuild> =>
      request('PUT', `/v1/builds/${id}`, HostBuild, { ms: BUILD_TIMEOUT_MS, signal }, body),

    getBuild: (id: string, signal?: AbortSignal): Promise<HostBuild> =>
      request('GET', `/v1/builds/${id}`, HostBuild, { ms: BUILD_TIMEOUT_MS, signal }),

    readBuildLog: (id: string, query: HostBuildLogQuery, signal?: AbortSignal): Promise<HostBuildLog> => {
      const { after, wait_ms = 0 } = query
      const path = `/v1/builds/${id}/log?after=${after}&wait_ms=${wait_ms}`
      return request('GET', path, HostBuildLog, { ms: wait_ms + BUILD_TIMEOUT_MS, signal })
    },

    cancelBuild: (id: string, body: HostBuildCancelBody, signal?: AbortSignal): Promise<HostBuild> =>
      request('POST', `/v1/builds/${id}/cancel`, HostBuild, { ms: BUILD_CANCEL_TIMEOUT_MS, signal }, body),

    async deleteBuild(id: string, signal?: AbortSignal): Promise<void> {
      await request('DELETE', `/v1/builds/${id}`, EMPTY, { ms: BUILD_CANCEL_TIMEOUT_MS, signal })
    },

    /**
     * Opens a stream to the guest's agent. The caller reads the response with `waitForHeaders`, or resets the stream.
     */
    openGuest(
      id: string,
      { method, route, subpath = '', query = {} }: GuestRequest,
      signal: AbortSignal,
    ): ClientHttp2Stream {
      const pairs = Object.entries(query).map(([name, value]) => `${name}=${encodeURIComponent(value)}`)
      const path = `/v1/vms/${id}/guest/${route}${subpath}${pairs.length > 0 ? `?${pairs.join('&')}` : ''}`
      try {
        return session.open({ ':method': method, ':path': path }, signal, {
          endStream: method === 'GET' || method === 'DELETE',
        })
      } catch (error) {
        throw unreachable(`${method} ${path}`, error)
      }
    },

    /** Opens a connection to a port of a VM; rejects with `port_closed` when nothing listens there. */
    openPort(id: string, port: number, disconnected: AbortSignal): Promise<ClientHttp2Stream> {
      const what = `POST /v1/vms/${id}/ports/${port}`
      return asHostError(what, async () => {
        const limited = AbortSignal.any([disconnected, AbortSignal.timeout(PORT_TIMEOUT_MS)])
        const stream = session.open({ ':method': 'POST', ':path': `/v1/vms/${id}/ports/${port}` }, disconnected)
        try {
          const headers = await Promise.race([waitForHeaders(stream, limited), rejectOnAbort(limited)])
          if (headers[':status'] === 200) return stream
          throw toHostError(parseJson(await readBody(stream, RESPONSE_MAX_BYTES, limited)), headers[':status'])
        } catch (error) {
          resetStream(stream)
          throw error
        }
      })
    },

    close: () => session.close(),
  }
}

function rejectOnAbort(signal: AbortSignal): Promise<never> {
  return new Promise((_resolve, reject) => {
    if (signal.aborted) return reject(signal.reason)
    signal.addEventListener('abort', () => reject(signal.reason), { once: true })
  })
}

const EMPTY = { type: 'object' } as const satisfies TSchema

/** Waits for the response headers; rejects when the stream ends without them. */
export function waitForHeaders(stream: ClientHttp2Stream, signal: AbortSignal): Promise<ResponseHeaders> {
  const { promise, resolve, reject } = Promise.withResolvers<ResponseHeaders>()
  const closed = () => reject(signal.aborted ? signal.reason : new Error('the stream was closed without a response'))
  stream.once('response', resolve)
  stream.once('error', reject)
  stream.once('close', closed)
  return promise.finally(() => {
    stream.off('error', reject)
    stream.off('close', closed)
  })
}

/** Reads the whole response. One that exceeds the limit is aborted before it is held in memory. */
export async function readBody(stream: ClientHttp2Stream, maxBytes: number, signal: AbortSignal): Promise<Buffer> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > maxBytes) {
      resetStream(stream)
      throw new Error(`the response is larger than ${maxBytes} bytes`)
    }
    chunks.push(chunk)
  }
  signal.throwIfAborted()
  if (stream.rstCode !== 0) throw new Error('the response was interrupted')
  return Buffer.concat(chunks)
}

export function parseJson(bytes: Buffer): unknown {
  try {
    return JSON.parse(bytes.toString('utf8'))
  } catch {
    return undefined // Matches no schema, so the caller reports what it expected.
  }
}

function toHostError(value: unknown, status: number | undefined): HostError {
  if (matches(HostFailure, value)) return new HostError(value.code, value.message)
  return new HostError('internal', `the host responded with ${status} and no error code`)
}

async function asHostError<T>(what: string, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    throw unreachable(what, error)
  }
}

const unreachable = (what: string, error: unknown): HostError =>
  error instanceof HostError ? error : new HostError('unreachable', `${what}: no response`, { cause: error })
