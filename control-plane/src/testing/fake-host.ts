/**
 * A host agent without VMs, for tests of the control plane: a real HTTP/2 server on a unix socket, with the router of
 * the real host agent (kit/src/host-router.ts) and VMs that go through the real states (fake-vms.ts). Like the real one it
 * undoes a create whose caller disconnects. On demand it hangs, fails, dies or loses VMs.
 */
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import {
  createServer,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import {
  createHostRouter,
  type HostHandlers,
  HostRequestError,
  parsePort,
  respondFailure,
} from '@warren/kit/host-router'
import {
  findRelayedGuestRoute,
  type HostImage,
  type HostMetrics,
  type HostState,
  type HostVmCreateBody,
  type HostVmCreated,
} from '@warren/protocol'
import { type BuildHooks, FakeBuilds } from './fake-builds.ts'
import { serveGuest } from './fake-guest.ts'
import { endGuest, FakeHostFailure, type VmHooks } from './fake-vm.ts'
import { FakeVms } from './fake-vms.ts'

export { FakeHostFailure }

export type Hooks = VmHooks &
  BuildHooks & {
    state?: () => Promise<void> | void
    metrics?: () => Promise<void> | void
    /** Serves requests to the guest instead of the fake guest. */
    guest?: (stream: ServerHttp2Stream, url: URL, method: string) => Promise<void> | void
  }

const DEFAULT_IMAGES: HostImage[] = [
  { name: 'debian:13', state: 'ready', digest: 'sha256:1', size_bytes: 1, min_disk_mib: 512 },
]

export class FakeHost extends FakeVms {
  readonly id: string
  readonly socket: string
  readonly calls: string[] = []
  override hooks: Hooks = {}
  cidr: string
  region = 'eu'
  readonly templateBuilds = new FakeBuilds(
    () => this.images,
    () => this.hooks,
  )
  #server: Http2Server | undefined
  readonly #route = createHostRouter(this.#createHandlers())
  readonly #sessions = new Set<ServerHttp2Session>()

  accel: 'kvm' | 'tcg' = 'tcg'
  volume = { total_mib: 100_000_000, free_mib: 90_000_000, floor_mib: 4096, sandboxes_mib: 0 }

  constructor(folder: string, options: { id?: string; memMib?: number; cidr?: string }) {
    super(folder, { memMib: options.memMib ?? 64 * 1024, images: [...DEFAULT_IMAGES] })
    this.socket = path.join(folder, 'host.sock')
    this.id = options.id ?? '10.0.0.1'
    this.cidr = options.cidr ?? '100.64.0.0/16'
  }

  async start(): Promise<void> {
    await rm(this.socket, { force: true })
    const server = createServer({
      settings: { initialWindowSize: 256 * 1024 },
      maxSessionMemory: 1e9,
      // A client that disconnects resets its stream; a thousand resets are not an attack here.
      streamResetBurst: 1e6,
      streamResetRate: 1e6,
    })
    server.on('session', (session) => {
      session.setLocalWindowSize(2 ** 28)
      this.#sessions.add(session)
      session.once('close', () => this.#sessions.delete(session))
      session.on('error', () => {})
    })
    server.on('stream', (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => {
      stream.on('error', () => {})
      void this.#serve(stream, headers)
    })
    await new Promise<void>((resolve) => server.listen(this.socket, resolve))
    this.#server = server
  }

  /** The agent dies; its VMs keep running. */
  async stop(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    this.dropOperations()
    for (const session of this.#sessions) session.destroy()
    await new Promise<void>((resolve) => (server ? server.close(() => resolve()) : resolve()))
  }

  async remove(): Promise<void> {
    for (const vm of this.vms.values()) endGuest(vm)
    await this.stop()
    await rm(this.folder, { recursive: true, force: true })
  }

  async #serve(stream: ServerHttp2Stream, headers: IncomingHttpHeaders): Promise<void> {
    const [pathname] = String(headers[':path']).split('?')
    this.calls.push(`${headers[':method']} ${pathname}`)
    try {
      await this.#route(stream, headers)
    } catch (error) {
      const known = error instanceof FakeHostFailure || error instanceof HostRequestError
      respondFailure(stream, known ? error.code : 'internal', String((error as Error).message))
    }
  }

  #createHandlers(): HostHandlers {
    return {
      getHost: () => this.#getState(),
      getMetrics: () => this.#getMetrics(),
      createVm: ({ body, stream }) => this.#createVm(body, stream),
      pauseVm: ({ params, body }) => this.pauseVm(params.id, body),
      resumeVm: ({ params, body }) => this.resumeVm(params.id, body),
      forkVm: ({ params, body }) => this.forkVm(params.id, body),
      resizeVm: ({ params, body }) => this.resizeVm(params.id, body),
      deleteVm: ({ params, query }) => this.deleteVm(params.id, query.fence),
      setVmNetwork: ({ params, body }) => this.putNetwork(params.id, body),
      getVmNetwork: ({ params }) => this.getNetwork(params.id),
      listNetworks: () => this.listNetworks(),
      setVmMounts: ({ params, body }) => this.setMounts(params.id, body),
      getVmMounts: ({ params }) => this.getMounts(params.id),
      listMounts: () => this.listMounts(),
      getVmMetrics: ({ params }) => this.getVmMetrics(params.id),
      getVmSeries: ({ params }) => this.getVmSeries(params.id),
      collectSnapshots: () => ({ removed: 0, bytes: 0 }),
      listBases: () => ({ bases: this.listBases() }),
      prepareBase: ({ body }) => this.prepareBase(body),
      startBuild: ({ params, body }) => this.templateBuilds.start(params.id, body),
      getBuild: ({ params }) => this.templateBuilds.get(params.id),
      readBuildLog: ({ params, query }) => this.templateBuilds.readLog(params.id, query),
      cancelBuild: ({ params, body }) => this.templateBuilds.cancel(params.id, body),
      deleteBuild: async ({ params }) => {
        await this.templateBuilds.delete(params.id)
        return {}
      },
      connectToPort: ({ params, stream }) => this.#connectToPort(params.id, parsePort(params.port), stream),
      callGuest: ({ method, params, search, stream }) =>
        this.#callGuest(params.id, method, new URL(`/guest/${params['*']}${search}`, 'http://host'), stream),
    }
  }

  async #getState(): Promise<HostState> {
    await this.hooks.state?.()
    const { id, region, cidr, images, accel, disks, volume } = this
    const state = { id, region, mem_mib: this.memMib, cidr, accel, disks, volume, images, vms: this.listVms() }
    return { ...state, builds: this.templateBuilds.list() }
  }

  async #getMetrics(): Promise<HostMetrics> {
    await this.hooks.metrics?.()
    const samples = [{ labels: { state: 'running' }, value: this.listVms().length }]
    return { families: [{ name: 'warren_host_vms', help: 'VMs on the host, by state', type: 'gauge', samples }] }
  }

  async #createVm(body: HostVmCreateBody, stream: ServerHttp2Stream): Promise<HostVmCreated> {
    const cancelled = Promise.withResolvers<never>()
    cancelled.promise.catch(() => {})
    stream.once('aborted', () => cancelled.reject(new FakeHostFailure('internal', 'the caller disconnected')))
    const limit = setTimeout(() => cancelled.reject(new FakeHostFailure('boot_failed', 'took too long')), body.limit_ms)
    try {
      return await this.createVm(body, cancelled.promise)
    } finally {
      clearTimeout(limit)
    }
  }

  /** A port of a VM is the same port of this machine. */
  async #connectToPort(id: string, port: number, stream: ServerHttp2Stream): Promise<void> {
    this.getRunningVm(id)
    const socket = net.connect({ port, host: '127.0.0.1', allowHalfOpen: true })
    try {
      await once(socket, 'connect')
    } catch {
      throw new FakeHostFailure('port_closed', `nothing listens on port ${port}`)
    }
    socket.on('error', () => {})
    stream.respond({ ':status': 200 })
    stream.pipe(socket)
    socket.pipe(stream)
    socket.once('close', () => stream.close())
    stream.once('close', () => socket.destroy())
  }

  async #callGuest(id: string, method: string, url: URL, stream: ServerHttp2Stream): Promise<void> {
    const guestPath = url.pathname.replace(/^\/guest/, '')
    if (!findRelayedGuestRoute(method, guestPath)) {
      throw new FakeHostFailure('not_found', `the host does not relay ${method} ${guestPath}`)
    }
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (vm.state !== 'running') throw new FakeHostFailure('guest_unreachable', `VM ${id} is ${vm.state}`)
    if (this.hooks.guest) return this.hooks.guest(stream, url, method)
    await serveGuest(vm.guest, method, url, stream)
  }
}

/** Removed when the test file ends. */
export async function startFakeHost(options: { id?: string; memMib?: number; cidr?: string } = {}): Promise<FakeHost> {
  const host = new FakeHost(await mkdtemp(path.join(tmpdir(), 'warren-fake-host-')), options)
  await host.start()
  after(() => host.remove())
  return host
}
