/**
 * A client of the control plane's public API: what the gateway needs of it, with the types of the protocol. Every request
 * has a time limit, and names what it does in its errors.
 *
 * Requests that are safe to repeat are repeated while the control plane cannot be reached or is overloaded, so that its
 * restart does not fail a deployment. A create is repeated by its caller, who finds the sandbox by name
 * (deployments/sandboxes.ts). A start of a process has an idempotency key.
 */
import { randomUUID } from 'node:crypto'
import { setTimeout as delay } from 'node:timers/promises'
import {
  type ExecResult,
  NdjsonDecoder,
  type Page,
  type ProcessCreateBody,
  ProcessFrame,
  type ProcessListView,
  type ProcessView,
  type SandboxCreateBody,
  type SandboxStatus,
  type SandboxView,
  TRANSITIONAL_STATUSES,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { ControlPlaneError, readError } from './error.ts'

export type ControlPlane = ReturnType<typeof createControlPlane>
export type Access = { baseUrl: string; apiKey: string }

const REQUEST_LIMIT_MS = 30_000
/** A create boots a VM if none is prepared, a pause writes its memory. */
const VM_LIMIT_MS = 120_000
const FILE_LIMIT_MS = 600_000
const PAGE_ITEMS = 500
const STATUS_POLL_MS = 250
const RETRY_DELAYS_MS = [200, 500, 1_000, 2_000, 4_000, 8_000]

type Options = {
  body?: object
  limitMs?: number
  signal?: AbortSignal | undefined
  headers?: Record<string, string>
  /** False for requests that must not run twice. */
  isRepeatable?: boolean
}

export function createControlPlane({ baseUrl, apiKey }: Access) {
  const headersOf = (more: Record<string, string> = {}) => ({ 'X-Api-Key': apiKey, ...more })

  async function send(what: string, url: string, init: RequestInit): Promise<Response> {
    let response: Response
    try {
      response = await fetch(`${baseUrl}${url}`, init)
    } catch (error) {
      if (init.signal?.aborted && !isTimeout(init.signal.reason)) throw init.signal.reason
      const cause = error instanceof Error && error.message === 'fetch failed' ? error.cause : error
      throw new ControlPlaneError(0, `failed to ${what}: the sandbox service did not answer`, { cause })
    }
    if (response.ok) return response
    throw readError(what, response.status, await response.text().catch(() => ''))
  }

  async function call<Data>(what: string, method: string, url: string, options: Options = {}): Promise<Data> {
    const { body, limitMs = REQUEST_LIMIT_MS, signal, isRepeatable = method !== 'POST' } = options
    const headers = headersOf({ ...options.headers, ...(body ? { 'Content-Type': 'application/json' } : {}) })
    for (let attempt = 0; ; attempt++) {
      try {
        const response = await send(what, url, {
          method,
          headers,
          signal: limited(limitMs, signal),
          ...(body ? { body: JSON.stringify(body) } : {}),
        })
        return ((await response.json()) as { data: Data }).data
      } catch (error) {
        const wait = RETRY_DELAYS_MS[attempt]
        if (!isRepeatable || wait === undefined || !isTransient(error)) throw error
        await delay(wait, undefined, signal ? { signal } : {})
      }
    }
  }

  const getSandbox = (id: string, signal?: AbortSignal) =>
    call<SandboxView>('read a sandbox', 'GET', `/v1/sandboxes/${id}`, { signal })

  async function waitForStatus(id: string, wanted: SandboxStatus): Promise<void> {
    const deadline = Date.now() + VM_LIMIT_MS
    for (;;) {
      const { status, status_reason } = await getSandbox(id)
      if (status === wanted) return
      if (Date.now() > deadline || !isBetween(status)) {
        throw new ControlPlaneError(503, `the sandbox is ${status}, expected ${wanted}: ${status_reason ?? ''}`)
      }
      await delay(STATUS_POLL_MS)
    }
  }

  return {
    access: { baseUrl, apiKey },

    createSandbox: (body: SandboxCreateBody, signal?: AbortSignal) =>
      call<SandboxView>('create a sandbox', 'POST', '/v1/sandboxes', { body, signal, limitMs: VM_LIMIT_MS }),

    getSandbox,

    /** Those that exist, in any status but `destroyed` and `failed`. */
    async listSandboxes(): Promise<SandboxView[]> {
      const all: SandboxView[] = []
      for (;;) {
        const url = `/v1/sandboxes?limit=${PAGE_ITEMS}&offset=${all.length}`
        const { data } = await call<Page<SandboxView>>('list sandboxes', 'GET', url)
        all.push(...data)
        if (data.length < PAGE_ITEMS) return all.filter(({ status }) => status !== 'destroyed' && status !== 'failed')
      }
    },

    /** Resolves when it no longer exists, or never did. */
    async destroySandbox(id: string): Promise<void> {
      try {
        await call('destroy a sandbox', 'DELETE', `/v1/sandboxes/${id}`)
        await waitForStatus(id, 'destroyed')
      } catch (error) {
        if (!(error instanceof ControlPlaneError) || error.status !== 404) throw error
      }
    },

    /** Resolves when it is paused. */
    async pauseSandbox(id: string): Promise<void> {
      await call('pause a sandbox', 'POST', `/v1/sandboxes/${id}/pause`)
      await waitForStatus(id, 'paused')
    },

    /** Resolves when it runs. */
    async resumeSandbox(id: string): Promise<void> {
      await call('resume a sandbox', 'POST', `/v1/sandboxes/${id}/resume`)
      await waitForStatus(id, 'running')
    },

    async putFile(
      id: string,
      path: string,
      content: Buffer | string | (() => AsyncIterable<Uint8Array>),
      signal?: AbortSignal,
    ) {
      const isStream = typeof content === 'function'
      const init = {
        method: 'PUT',
        headers: headersOf({ 'Content-Type': 'application/octet-stream' }),
        signal: limited(FILE_LIMIT_MS, signal),
        body: isStream ? ReadableStream.from(content()) : new Uint8Array(Buffer.from(content)),
        ...(isStream ? { duplex: 'half' as const } : {}),
      }
      const response = await send('upload a file', `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`, init)
      await response.arrayBuffer()
    },

    async getFile(id: string, path: string, signal?: AbortSignal): Promise<AsyncIterable<Uint8Array>> {
      const init = { headers: headersOf(), signal: limited(FILE_LIMIT_MS, signal) }
      const { body } = await send('download a file', `/v1/sandboxes/${id}/files?path=${encodeURIComponent(path)}`, init)
      return body!
    },

    exec: (id: string, cmd: string, args: string[], signal?: AbortSignal) =>
      call<ExecResult>('run a command', 'POST', `/v1/sandboxes/${id}/exec`, { body: { cmd, args }, signal }),

    startProcess: (id: string, body: ProcessCreateBody, signal?: AbortSignal) =>
      call<ProcessView>('start a process', 'POST', `/v1/sandboxes/${id}/processes`, {
        body,
        signal,
        isRepeatable: true,
        headers: { 'Idempotency-Key': randomUUID() },
      }),

    listProcesses: async (id: string, signal?: AbortSignal) =>
      (await call<ProcessListView>('list processes', 'GET', `/v1/sandboxes/${id}/processes`, { signal })).processes,

    getProcess: (id: string, processId: string, signal?: AbortSignal) =>
      call<ProcessView>('read a process', 'GET', `/v1/sandboxes/${id}/processes/${processId}`, { signal }),

    endProcess: (id: string, processId: string, graceMs: number) =>
      call<ProcessView>('end a process', 'DELETE', `/v1/sandboxes/${id}/processes/${processId}?grace_ms=${graceMs}`, {
        limitMs: REQUEST_LIMIT_MS + graceMs,
      }),

    /** Output after `after`, then `exit`. The stream can also end without it, when the connection is lost. */
    async *connectProcess(
      id: string,
      processId: string,
      after: number,
      signal: AbortSignal,
    ): AsyncGenerator<ProcessFrame> {
      const url = `/v1/sandboxes/${id}/processes/${processId}/connect?after=${after}`
      const { body } = await send('read the output of a process', url, { headers: headersOf(), signal })
      const decoder = new NdjsonDecoder()
      for await (const bytes of body!) for (const frame of decoder.push(bytes)) yield parseFrame(frame)
    },
  }
}

/** A frame comes from the control plane, which has checked what the guest sent. */
function parseFrame(frame: unknown): ProcessFrame {
  if (Value.Check(ProcessFrame, frame)) return frame
  throw new ControlPlaneError(0, 'the sandbox service sent output that is not valid')
}

/** On its way to another status. */
export const isBetween = (status: SandboxStatus): boolean =>
  (TRANSITIONAL_STATUSES as readonly string[]).includes(status)

const limited = (limitMs: number, signal: AbortSignal | undefined): AbortSignal =>
  signal ? AbortSignal.any([signal, AbortSignal.timeout(limitMs)]) : AbortSignal.timeout(limitMs)

const isTimeout = (reason: unknown): boolean => reason instanceof DOMException && reason.name === 'TimeoutError'

export const isTransient = (error: unknown): boolean => error instanceof ControlPlaneError && error.isTransient
