/**
 * The API server of the host agent: HTTP/2 on a unix socket, with the routes of protocol/src/host-api.ts. It uses Node's
 * HTTP/2 directly, so that a stream to a guest is two connected streams with nothing in between.
 */
import http2, { type ServerHttp2Session, type ServerHttp2Stream } from 'node:http2'
import {
  createHostRouter,
  type HostHandlers,
  HostRequestError,
  parsePort,
  respondFailure,
} from '@warren/kit/host-router'
import { findRelayedGuestRoute, type HostState, type HostVmCreateBody, type HostVmCreated } from '@warren/protocol'
import { listBuilds } from './bases/ensure.ts'
import { listBases } from './bases/list.ts'
import { prepareBase } from './bases/prepare.ts'
import type { Builds } from './builds/builds.ts'
import type { Deps } from './deps.ts'
import { NO_MEMORY_LIMIT_MB } from './guest/channel.ts'
import { relayToGuest } from './guest/relay-to-guest.ts'
import { relayToPort } from './guest/relay-to-port.ts'
import { HostError } from './host-error.ts'
import { type HostSampler, toSampled } from './metrics/open.ts'
import { collectMetrics } from './observe/collect-metrics.ts'
import type { Vms } from './vms/vms.ts'

/** Longer than any object needs between being written and being named by a manifest. */
const UNNAMED_OBJECT_MAX_AGE_MS = 60 * 60_000

export type HostApp = { listen(path: string): Promise<void>; close(): Promise<void> }

export function createHostApp(deps: Deps, vms: Vms, builds: Builds, sampler: HostSampler): HostApp {
  const server = http2.createServer({
    // Streams are limited per sandbox (relay-to-guest.ts): one at its limit must not block the callers of the others.
    settings: { initialWindowSize: 1024 * 1024, maxConcurrentStreams: 2 ** 31 - 1 },
    // The only client is the control plane: many resets are clients that disconnected, not an attack.
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
  const serve = createHostRouter(createHandlers(deps, vms, builds, sampler))
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {}) // The caller disconnected; `close` follows.
    serve(stream, headers).catch((error) => fail(deps, stream, error))
  })
  return {
    listen: (path) => new Promise((resolve, reject) => server.once('error', reject).listen(path, resolve)),
    async close() {
      for (const session of sessions) session.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

const createHandlers = (deps: Deps, vms: Vms, builds: Builds, sampler: HostSampler): HostHandlers => ({
  getHost: () => getHost(deps, vms, builds),
  getMetrics: () => collectMetrics(deps, vms),
  createVm: ({ body, stream }) => createVm(vms, body, stream),
  pauseVm: ({ params, body }) => vms.pause(params.id, body),
  resumeVm: ({ params, body }) => vms.resume(params.id, body),
  forkVm: ({ params, body }) => vms.fork(params.id, body),
  resizeVm: ({ params, body }) => vms.resize(params.id, body),
  async deleteVm({ params, query }) {
    await vms.delete(params.id, query.fence)
    return {}
  },
  setVmNetwork: ({ params, body }) => vms.changeNetwork(params.id, body),
  getVmNetwork: ({ params }) => vms.reportNetwork(params.id),
  listNetworks: () => vms.listNetworks(),
  setVmMounts: ({ params, body }) => vms.setMounts(params.id, body),
  getVmMounts: ({ params }) => vms.reportMounts(params.id),
  listMounts: () => vms.listMounts(),
  getVmMetrics: ({ params }) => sampler.measure(toSampled(vms.getRunning(params.id))),
  getVmSeries({ params }) {
    vms.check(params.id)
    return sampler.getSeries(params.id)
  },
  collectSnapshots: () => deps.snapshots.collect(UNNAMED_OBJECT_MAX_AGE_MS),
  listBases: async () => ({ bases: await listBases(deps, vms.records(), listBuilds()) }),
  prepareBase: ({ body }) => deps.activity.run(() => prepareBase(deps, body)),
  startBuild: ({ params, body }) => builds.run(params.id, body),
  getBuild: ({ params }) => builds.get(params.id),
  readBuildLog: ({ params, query }) => builds.readLog(params.id, query),
  cancelBuild: ({ params, body }) => builds.cancel(params.id, body),
  async deleteBuild({ params }) {
    await builds.delete(params.id)
    return {}
  },
  connectToPort: ({ params, stream }) => relayToPort(vms, stream, params.id, parsePort(params.port)),
  callGuest: ({ method, params, search, stream }) =>
    callGuest(vms, stream, params.id, { method, path: `/${params['*']}`, search }),
})

async function getHost(deps: Deps, vms: Vms, builds: Builds): Promise<HostState> {
  const { hostId, region, memMib, cidr } = deps.config
  return {
    id: hostId,
    region,
    mem_mib: memMib,
    cidr,
    accel: deps.machine.accel,
    disks: deps.network.s3Proxy !== undefined,
    volume: await deps.volume.report(),
    images: await deps.images.list(),
    vms: vms.list(),
    builds: builds.list(),
  }
}

/** If the caller disconnects before the response, the create is undone. */
async function createVm(vms: Vms, body: HostVmCreateBody, stream: ServerHttp2Stream): Promise<HostVmCreated> {
  const callerDisconnected = new AbortController()
  const onClose = () => callerDisconnected.abort(new Error('the caller disconnected'))
  stream.once('close', onClose)
  const created = await vms.create(body, callerDisconnected.signal)
  if (stream.destroyed) await vms.delete(body.id, body.fence)
  stream.off('close', onClose)
  return created
}

async function callGuest(
  vms: Vms,
  stream: ServerHttp2Stream,
  id: string,
  { method, path, search }: { method: string; path: string; search: string },
): Promise<void> {
  const route = findRelayedGuestRoute(method, path)
  if (!route) throw new HostError('not_found', `the host does not relay ${method} ${path}`)
  const { session } = await vms
    .get(id)
    .channel()
    .catch((error) => {
      throw error instanceof HostError
        ? error
        : new HostError('guest_unreachable', `the guest agent of ${id} does not respond`, { cause: error })
    })
  await relayToGuest(session, stream, route, `${path}${search}`)
}

function fail(deps: Deps, stream: ServerHttp2Stream, error: unknown): void {
  if (stream.destroyed) return // The caller disconnected first.
  if (stream.headersSent) return void stream.destroy(new Error('failed after the response had begun'))
  if (error instanceof HostRequestError || error instanceof HostError) {
    const isOurs = error instanceof HostError && error.status >= 500
    if (isOurs) deps.log.warn({ err: error }, 'request failed')
    respondFailure(stream, error.code, error.message)
    return
  }
  deps.log.error({ err: error }, 'unexpected error')
  respondFailure(stream, 'internal', 'internal error')
}
