/**
 * The door for the control plane: HTTP/2 on a unix socket (protocol/host-api.ts). A handful of routes on Node's own
 * HTTP/2: what passes through to a guest is two streams tied together, with nothing in between.
 */
import http2, { type IncomingHttpHeaders, type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2'
import {
  findRelayedGuestRoute,
  type HostFailure,
  HostFenceQuery,
  type HostState,
  HostVmCreateBody,
  HostVmForkBody,
  HostVmNetworkBody,
  HostVmPauseBody,
  HostVmResumeBody,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import type { Deps } from './deps.ts'
import { NO_MEMORY_LIMIT_MB } from './guest/channel.ts'
import { relayToGuest } from './guest/relay-to-guest.ts'
import { relayToPort } from './guest/relay-to-port.ts'
import { HostError } from './host-error.ts'
import type { Vms } from './vms/vms.ts'

/** Nothing is between being written and being named for longer. */
const SAVING_MAX_MS = 60 * 60_000
const BODY_MAX_BYTES = 1024 * 1024

export type HostApp = { listen(path: string): Promise<void>; close(): Promise<void> }

export function createHostApp(deps: Deps, vms: Vms): HostApp {
  const server = http2.createServer({
    // Each sandbox has a limit of its own: one that is full must not keep the callers of the others waiting.
    settings: { initialWindowSize: 1024 * 1024, maxConcurrentStreams: 2 ** 31 - 1 },
    // The one client is the control plane: many resets are callers that went away, not an attack.
    streamResetBurst: 1_000_000,
    streamResetRate: 100_000,
    maxSessionMemory: NO_MEMORY_LIMIT_MB,
  })
  const sessions = new Set<ServerHttp2Session>()
  server.on('session', (session) => {
    sessions.add(session)
    session.setLocalWindowSize?.(64 * 1024 * 1024)
    session.on('error', () => {}) // `close` follows.
    session.once('close', () => sessions.delete(session))
  })
  server.on('stream', (stream, headers) => {
    stream.on('error', () => {}) // A caller that went away; `close` follows.
    route(deps, vms, stream as ServerHttp2Stream, headers).catch((error) =>
      answerError(deps, stream as ServerHttp2Stream, error),
    )
  })
  return {
    listen: (path) => new Promise((resolve, reject) => server.once('error', reject).listen(path, resolve)),
    async close() {
      for (const session of sessions) session.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function route(deps: Deps, vms: Vms, stream: ServerHttp2Stream, headers: IncomingHttpHeaders): Promise<void> {
  const url = new URL(headers[':path'] ?? '/', 'http://host')
  const call = `${headers[':method']} ${url.pathname}`
  if (call === 'GET /v1/host') return answer(stream, await describeHost(deps, vms))
  if (call === 'GET /v1/networks') return answer(stream, await vms.listNetworks())
  if (call === 'POST /v1/vms') return createOne(vms, stream)
  if (call === 'POST /v1/snapshots/collect') return answer(stream, await deps.snapshots.collect(SAVING_MAX_MS))

  const [, subject, operation] = /^POST \/v1\/vms\/([^/]+)\/(pause|resume|forks)$/.exec(call) ?? []
  if (subject !== undefined) return answer(stream, await operate(vms, subject, operation!, await readJson(stream)))
  const [, member] = /^(?:GET|PUT) \/v1\/vms\/([^/]+)\/network$/.exec(call) ?? []
  if (member !== undefined) return answer(stream, await network(vms, headers, stream, member))
  const [, target, port] = /^POST \/v1\/vms\/([^/]+)\/ports\/(\d{1,5})$/.exec(call) ?? []
  if (target !== undefined) return relayToPort(vms, stream, target, Number(port))
  const [, id, rest] = /^\/v1\/vms\/([^/]+)(?:\/guest\/(\w+(?:\/\w+)*))?$/.exec(url.pathname) ?? []
  if (id !== undefined && rest !== undefined) return pass(vms, stream, headers, { id, rest, search: url.search })
  if (id !== undefined && headers[':method'] === 'DELETE') {
    const query = { fence: Number(url.searchParams.get('fence')) }
    await vms.delete(id, check(HostFenceQuery, query).fence)
    return answer(stream, {})
  }
  throw new HostError('not_found', `no route ${call}`)
}

async function operate(vms: Vms, id: string, operation: string, body: unknown): Promise<object> {
  if (operation === 'pause') return vms.pause(id, check(HostVmPauseBody, body))
  if (operation === 'resume') return vms.resume(id, check(HostVmResumeBody, body))
  return vms.fork(id, check(HostVmForkBody, body))
}

async function network(vms: Vms, headers: IncomingHttpHeaders, stream: ServerHttp2Stream, id: string): Promise<object> {
  if (headers[':method'] === 'GET') return vms.reportNetwork(id)
  return vms.changeNetwork(id, check(HostVmNetworkBody, await readJson(stream)))
}

async function describeHost(deps: Deps, vms: Vms): Promise<HostState> {
  const { hostId, region, memMib, cidr } = deps.config
  return {
    id: hostId,
    region,
    mem_mib: memMib,
    cidr,
    accel: deps.machine.accel,
    images: await deps.images.list(),
    vms: vms.list(),
  }
}

/** A caller that goes away before the answer wants no VM any more. */
async function createOne(vms: Vms, stream: ServerHttp2Stream): Promise<void> {
  const body = check(HostVmCreateBody, await readJson(stream))
  const gone = new AbortController()
  const onClose = () => gone.abort(new Error('the caller went away'))
  stream.once('close', onClose)
  const created = await vms.create(body, gone.signal)
  if (stream.destroyed) return vms.delete(body.id, body.fence)
  stream.off('close', onClose)
  answer(stream, created)
}

async function pass(
  vms: Vms,
  stream: ServerHttp2Stream,
  headers: IncomingHttpHeaders,
  to: { id: string; rest: string; search: string },
): Promise<void> {
  const method = headers[':method'] ?? ''
  const route = findRelayedGuestRoute(method, `/${to.rest}`)
  if (!route) throw new HostError('not_found', `the host does not relay ${method} /${to.rest}`)
  const { session } = await vms
    .get(to.id)
    .channel()
    .catch((error) => {
      throw error instanceof HostError
        ? error
        : new HostError('guest_unreachable', `${to.id} does not answer`, { cause: error })
    })
  await relayToGuest(session, stream, route, `/${to.rest}${to.search}`)
}

function check<Schema extends TSchema>(schema: Schema, value: unknown): Static<Schema> {
  if (Value.Check(schema, value)) return value as Static<Schema>
  const [fault] = Value.Errors(schema, value)
  throw new HostError('invalid', `${fault?.instancePath ?? ''} ${fault?.message ?? 'is not valid'}`.trim())
}

async function readJson(stream: ServerHttp2Stream): Promise<unknown> {
  const chunks: Buffer[] = []
  let bytes = 0
  for await (const chunk of stream) {
    bytes += (chunk as Buffer).length
    if (bytes > BODY_MAX_BYTES) throw new HostError('invalid', 'the body is too large')
    chunks.push(chunk as Buffer)
  }
  try {
    return JSON.parse(Buffer.concat(chunks).toString('utf8'))
  } catch {
    throw new HostError('invalid', 'the body is not JSON')
  }
}

function answer(stream: ServerHttp2Stream, body: object, status = 200): void {
  if (stream.destroyed || stream.headersSent) return
  stream.respond({ ':status': status, 'content-type': 'application/json' })
  stream.end(JSON.stringify(body))
}

function answerError(deps: Deps, stream: ServerHttp2Stream, error: unknown): void {
  if (stream.destroyed) return // The caller went away first; nobody is waiting for the reason.
  if (stream.headersSent) return void stream.destroy(new Error('cut off'))
  if (!(error instanceof HostError)) deps.log.error({ err: error }, 'unexpected error')
  else if (error.status >= 500) deps.log.warn({ err: error }, 'could not do what was asked')
  const known = error instanceof HostError ? error : new HostError('internal', 'internal error')
  answer(stream, { code: known.code, message: known.message } satisfies HostFailure, known.status)
}
