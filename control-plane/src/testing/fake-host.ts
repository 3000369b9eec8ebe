/**
 * A host agent without VMs, for tests of the control plane only: a real HTTP/2 server on a unix socket that keeps
 * honest states (fake-vms.ts), takes back a create when its caller leaves, and does on demand what real ones do at
 * night: hang, fail, die, lose VMs.
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
  type HostFailureCode,
  type HostImage,
  type HostState,
  HostVmCreateBody,
  HostVmForkBody,
  HostVmNetworkBody,
  HostVmPauseBody,
  HostVmResumeBody,
} from '@warren/protocol'
import type { Static, TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { answerJson, readBody as readBytes } from './fake-answers.ts'
import { serveGuest } from './fake-guest.ts'
import { endGuest, FakeHostFailure, type VmHooks } from './fake-vm.ts'
import { FakeVms } from './fake-vms.ts'

export { FakeHostFailure }

export type Hooks = VmHooks & {
  state?: () => Promise<void> | void
  /** Takes the place of the guest for what passes through. */
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
  #server: Http2Server | undefined
  readonly #sessions = new Set<ServerHttp2Session>()

  constructor(folder: string, options: { id?: string; memMib?: number; cidr?: string }) {
    super(folder, { memMib: options.memMib ?? 64 * 1024, images: DEFAULT_IMAGES })
    this.socket = path.join(folder, 'host.sock')
    this.id = options.id ?? '10.0.0.1'
    this.cidr = options.cidr ?? '100.64.0.0/16'
  }

  async start(): Promise<void> {
    await rm(this.socket, { force: true })
    const server = createServer({
      settings: { initialWindowSize: 256 * 1024 },
      maxSessionMemory: 1e9,
      // A caller that hangs up resets its stream; a thousand of them are no attack here.
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
      void this.#serve(stream, String(headers[':method']), new URL(String(headers[':path']), 'http://host'))
    })
    await new Promise<void>((resolve) => server.listen(this.socket, resolve))
    this.#server = server
  }

  /** The agent dies; its VMs live on. */
  async stop(): Promise<void> {
    const server = this.#server
    this.#server = undefined
    this.forgetOperations()
    for (const session of this.#sessions) session.destroy()
    await new Promise<void>((resolve) => (server ? server.close(() => resolve()) : resolve()))
  }

  async remove(): Promise<void> {
    for (const vm of this.vms.values()) endGuest(vm)
    await this.stop()
    await rm(this.folder, { recursive: true, force: true })
  }

  async #serve(stream: ServerHttp2Stream, method: string, url: URL): Promise<void> {
    this.calls.push(`${method} ${url.pathname}`)
    try {
      const answer = await this.#answer(stream, method, url)
      if (answer !== undefined) answerJson(stream, 200, answer)
    } catch (error) {
      const code = error instanceof FakeHostFailure ? error.code : 'internal'
      answerJson(stream, STATUS[code] ?? 500, { code, message: String((error as Error).message) })
    }
  }

  /** Undefined when the answer is a stream that has been served. */
  async #answer(stream: ServerHttp2Stream, method: string, url: URL): Promise<object | undefined> {
    const [, , , id = '', verb] = url.pathname.split('/')
    if (url.pathname === '/v1/host') return this.#state()
    if (url.pathname === '/v1/networks') return this.listNetworks()
    if (verb === 'network' && method === 'GET') return this.getNetwork(id)
    if (verb === 'network') return this.putNetwork(id, await readBody(stream, HostVmNetworkBody))
    if (verb === 'ports') return void (await this.#connect(id, Number(url.pathname.split('/')[5]), stream))
    if (verb === 'guest') return void (await this.#passThrough(id, method, url, stream))
    if (method === 'DELETE') return this.deleteVm(id, Number(url.searchParams.get('fence')))
    if (verb === 'pause') return this.pauseVm(id, await readBody(stream, HostVmPauseBody))
    if (verb === 'resume') return this.resumeVm(id, await readBody(stream, HostVmResumeBody))
    if (verb === 'forks') return this.forkVm(id, await readBody(stream, HostVmForkBody))
    return this.#create(stream)
  }

  async #state(): Promise<HostState> {
    await this.hooks.state?.()
    const { id, region, cidr, images } = this
    return { id, region, mem_mib: this.memMib, cidr, accel: 'tcg', images, vms: this.listVms() }
  }

  async #create(stream: ServerHttp2Stream): Promise<object> {
    const body = await readBody(stream, HostVmCreateBody)
    const left = Promise.withResolvers<never>()
    left.promise.catch(() => {})
    stream.once('aborted', () => left.reject(new FakeHostFailure('internal', 'the caller has gone')))
    const limit = setTimeout(() => left.reject(new FakeHostFailure('boot_failed', 'took too long')), body.limit_ms)
    try {
      return await this.createVm(body, left.promise)
    } finally {
      clearTimeout(limit)
    }
  }

  /** Ports of this machine are the ports of every VM. */
  async #connect(id: string, port: number, stream: ServerHttp2Stream): Promise<void> {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (vm.state !== 'running') throw new FakeHostFailure('wrong_state', `VM ${id} is ${vm.state}`)
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

  async #passThrough(id: string, method: string, url: URL, stream: ServerHttp2Stream): Promise<void> {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (vm.state !== 'running') throw new FakeHostFailure('guest_unreachable', `VM ${id} is ${vm.state}`)
    if (this.hooks.guest) return this.hooks.guest(stream, url, method)
    await serveGuest(vm.guest, method, url, stream)
  }
}

/** Gone when the test file ends. */
export async function startFakeHost(options: { id?: string; memMib?: number; cidr?: string } = {}): Promise<FakeHost> {
  const host = new FakeHost(await mkdtemp(path.join(tmpdir(), 'warren-fake-host-')), options)
  await host.start()
  after(() => host.remove())
  return host
}

const STATUS: Partial<Record<HostFailureCode, number>> = {
  not_found: 404,
  fence_lost: 409,
  invalid: 400,
  port_closed: 502,
}

async function readBody<Body extends TSchema>(stream: ServerHttp2Stream, schema: Body): Promise<Static<Body>> {
  const body: unknown = JSON.parse((await readBytes(stream)).toString())
  if (!Value.Check(schema, body)) throw new FakeHostFailure('invalid', 'the body does not fit')
  return body as Static<Body>
}
