/**
 * A host agent without VMs, for tests of the control plane only: a real HTTP/2 server on a unix socket that keeps
 * honest states (a VM is creating, running or dead; a lower fence is refused, also for a VM that is gone), takes back
 * what it began when its caller leaves, and does on demand what real ones do at night: hang, fail, die, lose VMs.
 */
import { mkdtemp, rm } from 'node:fs/promises'
import {
  createServer,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import {
  type HostFailureCode,
  type HostImage,
  type HostState,
  type HostVm,
  HostVmCreateBody,
  PROCESS_JOURNAL_MAX_BYTES,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { answerJson, readBody } from './fake-answers.ts'
import { type FakeGuest, serveGuest } from './fake-guest.ts'

export class FakeHostFailure extends Error {
  readonly code: HostFailureCode
  constructor(code: HostFailureCode, message = 'told to fail') {
    super(message)
    this.code = code
  }
}

type FakeVm = HostVm & { body: HostVmCreateBody; guest: FakeGuest }

/** Awaited at their moment; what they throw is the answer, and one that never resolves hangs. */
export type Hooks = {
  beforeCreate?: (body: HostVmCreateBody) => Promise<void> | void
  /** The VM runs; the answer has not left. */
  afterCreate?: (body: HostVmCreateBody) => Promise<void> | void
  beforeDelete?: (id: string) => Promise<void> | void
  /** The VM is gone; the answer has not left. */
  afterDelete?: (id: string) => Promise<void> | void
  state?: () => Promise<void> | void
  /** Takes the place of the guest for what passes through. */
  guest?: (stream: ServerHttp2Stream, url: URL) => Promise<void> | void
}

const DEFAULT_IMAGES: HostImage[] = [
  { name: 'debian:13', state: 'ready', digest: 'sha256:1', size_bytes: 1, min_disk_mib: 512 },
]

export class FakeHost {
  readonly id: string
  readonly socket: string
  readonly vms = new Map<string, FakeVm>()
  readonly calls: string[] = []
  hooks: Hooks = {}
  images: HostImage[] = DEFAULT_IMAGES
  memMib: number
  cidr: string
  region = 'eu'
  readonly #fences = new Map<string, number>()
  readonly #folder: string
  #server: Http2Server | undefined
  readonly #sessions = new Set<ServerHttp2Session>()

  constructor(folder: string, options: { id?: string; memMib?: number; cidr?: string }) {
    this.#folder = folder
    this.socket = path.join(folder, 'host.sock')
    this.id = options.id ?? '10.0.0.1'
    this.memMib = options.memMib ?? 64 * 1024
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
    for (const session of this.#sessions) session.destroy()
    await new Promise<void>((resolve) => (server ? server.close(() => resolve()) : resolve()))
  }

  /** QEMU ends. */
  killVm(id: string, reason: string): void {
    const vm = this.vms.get(id)!
    Object.assign(vm, { state: 'dead', reason })
    endCommands(vm)
  }

  /** As if the machine had been set up anew. */
  loseVm(id: string): void {
    endCommands(this.vms.get(id)!)
    this.vms.delete(id)
  }

  async remove(): Promise<void> {
    for (const vm of this.vms.values()) endCommands(vm)
    await this.stop()
    await rm(this.#folder, { recursive: true, force: true })
  }

  async #serve(stream: ServerHttp2Stream, method: string, url: URL): Promise<void> {
    const route = `${method} ${url.pathname}`
    this.calls.push(route)
    const id = url.pathname.split('/')[3] ?? ''
    try {
      if (route === 'GET /v1/host') answerJson(stream, 200, await this.#state())
      else if (route === 'POST /v1/vms') answerJson(stream, 200, await this.#create(stream))
      else if (method === 'DELETE' && !url.pathname.includes('/guest/'))
        answerJson(stream, 200, await this.#delete(id, Number(url.searchParams.get('fence'))))
      else await this.#passThrough(id, method, url, stream)
    } catch (error) {
      const code = error instanceof FakeHostFailure ? error.code : 'internal'
      answerJson(stream, STATUS[code] ?? 500, { code, message: String((error as Error).message) })
    }
  }

  async #state(): Promise<HostState> {
    await this.hooks.state?.()
    const vms = [...this.vms.values()].map(({ id, fence, state, reason }) => ({
      id,
      fence,
      state,
      ...(reason === undefined ? {} : { reason }),
    }))
    const { id, region, cidr, images } = this
    return { id, region, mem_mib: this.memMib, cidr, accel: 'tcg', images, vms }
  }

  async #create(stream: ServerHttp2Stream) {
    const body = await readCreate(stream)
    this.#checkFence(body.id, body.fence, 'create')
    this.#checkBody(body)
    const guest: FakeGuest = {
      root: await mkdtemp(path.join(this.#folder, 'vm-')),
      envs: body.envs,
      sshPubkeys: body.ssh_pubkeys,
      commands: new Set(),
      processes: new Map(),
      journalBytes: PROCESS_JOURNAL_MAX_BYTES,
    }
    const vm: FakeVm = { id: body.id, fence: body.fence, state: 'creating', body, guest }
    this.vms.set(body.id, vm)
    const left = Promise.withResolvers<never>()
    left.promise.catch(() => {})
    stream.once('aborted', () => left.reject(new FakeHostFailure('internal', 'the caller has gone')))
    const limit = setTimeout(() => left.reject(new FakeHostFailure('boot_failed', 'took too long')), body.limit_ms)
    const within = <T>(work: T) => Promise.race([work, left.promise])
    try {
      await within(this.hooks.beforeCreate?.(body))
      if (this.vms.get(body.id) !== vm) throw new FakeHostFailure('fence_lost', 'deleted meanwhile')
      vm.state = 'running'
      await within(this.hooks.afterCreate?.(body))
      return { spawn_ms: 12.5, how: 'clone' }
    } catch (error) {
      if (this.vms.get(body.id) === vm) this.vms.delete(body.id)
      throw error
    } finally {
      clearTimeout(limit)
    }
  }

  async #delete(id: string, fence: number) {
    this.#checkFence(id, fence, 'delete')
    await this.hooks.beforeDelete?.(id)
    const vm = this.vms.get(id)
    if (vm) endCommands(vm)
    this.vms.delete(id)
    await this.hooks.afterDelete?.(id)
    return {}
  }

  async #passThrough(id: string, method: string, url: URL, stream: ServerHttp2Stream): Promise<void> {
    const vm = this.vms.get(id)
    if (!vm) throw new FakeHostFailure('not_found', `no VM ${id} here`)
    if (vm.state !== 'running') throw new FakeHostFailure('guest_unreachable', `VM ${id} is ${vm.state}`)
    if (this.hooks.guest) return this.hooks.guest(stream, url)
    await serveGuest(vm.guest, method, url, stream)
  }

  /** A create whose VM was deleted with the same number comes too late, too. */
  #checkFence(id: string, fence: number, what: 'create' | 'delete'): void {
    const seen = this.#fences.get(id) ?? 0
    if (fence < seen || (what === 'create' && fence === seen)) throw new FakeHostFailure('fence_lost', `${id}: ${seen}`)
    this.#fences.set(id, fence)
  }

  #checkBody(body: HostVmCreateBody): void {
    const taken = [...this.vms.values()].find((vm) => vm.body.ip === body.ip)
    if (taken) throw new FakeHostFailure('internal', `${body.ip} belongs to ${taken.id}`)
    const used = [...this.vms.values()].reduce((sum, vm) => sum + vm.body.mem_mib, 0)
    if (used + body.mem_mib > this.memMib) throw new FakeHostFailure('internal', 'this host was oversold')
    if (!this.images.some((image) => image.name === body.image && image.state === 'ready')) {
      throw new FakeHostFailure('image_not_ready', body.image)
    }
  }
}

/** Gone when the test file ends. */
export async function startFakeHost(options: { id?: string; memMib?: number; cidr?: string } = {}): Promise<FakeHost> {
  const host = new FakeHost(await mkdtemp(path.join(tmpdir(), 'warren-fake-host-')), options)
  await host.start()
  after(() => host.remove())
  return host
}

const STATUS: Partial<Record<HostFailureCode, number>> = { not_found: 404, fence_lost: 409, invalid: 400 }

async function readCreate(stream: ServerHttp2Stream): Promise<HostVmCreateBody> {
  const body: unknown = JSON.parse((await readBody(stream)).toString())
  if (!Value.Check(HostVmCreateBody, body)) throw new FakeHostFailure('invalid', 'the body does not fit')
  return body
}

function endCommands(vm: FakeVm): void {
  for (const child of vm.guest.commands) child.kill('SIGKILL')
  for (const { child } of vm.guest.processes.values()) child.kill('SIGKILL')
}
