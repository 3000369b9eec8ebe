/**
 * Managed processes of a fake guest: real child processes on pipes, each with a journal. A terminal is only simulated
 * (its output is `pty`, its size is stored). It implements protocol/src/guest-processes.ts.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import type { ServerHttp2Stream } from 'node:http2'
import path from 'node:path'
import { respondJson } from '@warren/kit/host-router'
import {
  GUEST_CONNECT_FRAME,
  GuestProcessStart,
  guestFrame,
  PROCESS_EVENT_MAX_BYTES,
  type ProcessStream,
  type ProcessView,
} from '@warren/protocol'
import { Value } from 'typebox/value'
import { readBody } from './read-body.ts'

type Event = { seq: number; stream: ProcessStream; bytes: Buffer }

export class FakeProcess extends EventEmitter {
  readonly child: ChildProcess
  readonly view: ProcessView
  readonly events: Event[] = []
  size = { rows: 24, cols: 80 }
  inputSeq = 0
  stdinClosed = false
  /** No more output will arrive, and the exit status is known. */
  drained = false
  #journalBytes: number

  constructor(id: string, start: GuestProcessStart, root: string, envs: Record<string, string>, journalBytes: number) {
    super()
    this.setMaxListeners(0)
    this.#journalBytes = journalBytes
    const { cmd = 'sh', args = [], cwd = root, env = {}, pty } = start
    this.child = spawn(cmd, args, {
      cwd,
      env: { PATH: process.env.PATH, HOME: path.join(root, 'root'), ...envs, ...env },
      stdio: 'pipe',
      detached: true,
    })
    this.child.stdin?.on('error', () => {}) // It may exit without reading everything.
    this.view = {
      process_id: id,
      kind: pty ? 'pty' : 'process',
      pid: this.child.pid ?? 0,
      state: 'running',
      leader_exited: false,
      tree_exited: false,
      created_at: `${new Date().toISOString().slice(0, -1)}000Z`,
      finished_at: null,
      exit_code: null,
      output: { oldest_seq: 0, newest_seq: 0, bytes: 0 },
      cmd,
      args,
      cwd,
    }
    for (const name of ['stdout', 'stderr'] as const) {
      this.child[name]!.on('data', (chunk: Buffer) => this.#record(pty ? 'pty' : name, chunk))
    }
    this.child.once('close', (code, signal) => this.#end(code, signal))
  }

  /** The guest's agent has lost track of the process. */
  lose(): void {
    this.view.state = 'failed'
    this.emit('change')
  }

  #record(stream: ProcessStream, chunk: Buffer): void {
    const { output } = this.view
    for (let from = 0; from < chunk.length; from += PROCESS_EVENT_MAX_BYTES) {
      const bytes = chunk.subarray(from, from + PROCESS_EVENT_MAX_BYTES)
      this.events.push({ seq: ++output.newest_seq, stream, bytes })
      output.bytes += bytes.length
    }
    while (output.bytes > this.#journalBytes) output.bytes -= this.events.shift()!.bytes.length
    output.oldest_seq = this.events[0]?.seq ?? output.newest_seq + 1
    this.emit('change')
  }

  #end(code: number | null, signal: string | null): void {
    if (this.view.state === 'failed') return
    Object.assign(this.view, {
      state: 'exited',
      leader_exited: true,
      tree_exited: true,
      finished_at: `${new Date().toISOString().slice(0, -1)}000Z`,
      exit_code: signal ? null : (code ?? 0),
      ...(signal ? { signal } : {}),
    })
    this.drained = true
    this.emit('change')
  }
}

export type FakeProcesses = { root: string; envs: Record<string, string>; processes: Map<string, FakeProcess> } & {
  journalBytes: number
}

let started = 0

export async function serveProcesses(
  guest: FakeProcesses,
  method: string,
  below: string,
  url: URL,
  stream: ServerHttp2Stream,
): Promise<void> {
  const [, id = '', verb = ''] = /^\/?([^/]*)\/?(.*)$/.exec(below)!
  if (id === '' && method === 'POST') return start(guest, stream)
  if (id === '') return respondJson(stream, 200, { processes: [...guest.processes.values()].map((one) => one.view) })
  const found = guest.processes.get(id)
  if (!found) return respondError(stream, 404, 'process_not_found')
  if (verb === '' && method === 'GET') return respondJson(stream, 200, found.view)
  if (verb === '') return end(found, Number(url.searchParams.get('grace_ms')), stream)
  if (verb === 'connect') return connect(found, Number(url.searchParams.get('after')), stream)
  if (verb === 'wait') return wait(found, Number(url.searchParams.get('timeout_ms')), stream)
  return control(found, verb, await readBody(stream), stream)
}

const respondError = (stream: ServerHttp2Stream, status: number, code: string, more: object = {}) =>
  respondJson(stream, status, { code, message: `from the guest: ${code}`, ...more })

async function start(guest: FakeProcesses, stream: ServerHttp2Stream): Promise<void> {
  const body: unknown = JSON.parse((await readBody(stream)).toString())
  if (!Value.Check(GuestProcessStart, body)) return respondError(stream, 400, 'invalid')
  const live = [...guest.processes.values()].filter((one) => !one.view.leader_exited)
  if (live.length >= (body.live_max ?? 64)) return respondError(stream, 429, 'process_limit_reached')
  const created = new FakeProcess(`proc_${++started}`, body, guest.root, guest.envs, guest.journalBytes)
  try {
    await once(created.child, 'spawn')
  } catch {
    return respondError(stream, 400, body.cwd === undefined ? 'invalid_cmd' : 'invalid_cwd')
  }
  guest.processes.set(created.view.process_id, created)
  respondJson(stream, 200, { ...created.view, secret_of_the_guest: 'must not be forwarded' })
}

async function control(one: FakeProcess, verb: string, body: Buffer, stream: ServerHttp2Stream): Promise<void> {
  const { view, child } = one
  if (verb === 'resize' && view.kind !== 'pty') return respondError(stream, 409, 'wrong_process_kind')
  if (verb === 'stdin/close' && view.kind === 'pty') return respondError(stream, 409, 'wrong_process_kind')
  if (view.leader_exited) return respondError(stream, 409, 'process_exited')
  if (verb === 'resize') one.size = JSON.parse(body.toString())
  else if (verb === 'signal') process.kill(-child.pid!, JSON.parse(body.toString()).signal)
  else if (one.stdinClosed) return respondError(stream, 409, 'stdin_closed')
  else if (verb === 'stdin/close') {
    one.stdinClosed = true
    child.stdin!.end()
  } else {
    if (body.length > 0) await new Promise((resolve) => child.stdin!.write(body, resolve))
    return respondJson(stream, 200, { input_seq: body.length > 0 ? ++one.inputSeq : one.inputSeq })
  }
  respondJson(stream, 200, {})
}

async function wait(one: FakeProcess, timeoutMs: number, stream: ServerHttp2Stream): Promise<void> {
  const limit = AbortSignal.timeout(timeoutMs)
  while (!one.view.leader_exited) {
    if (limit.aborted) return respondError(stream, 408, 'wait_timeout')
    await once(one, 'change', { signal: limit }).catch(() => {})
  }
  respondJson(stream, 200, one.view)
}

async function end(one: FakeProcess, graceMs: number, stream: ServerHttp2Stream): Promise<void> {
  if (!one.view.leader_exited) {
    process.kill(-one.child.pid!, graceMs === 0 ? 'SIGKILL' : 'SIGTERM')
    const kill = setTimeout(() => process.kill(-one.child.pid!, 'SIGKILL'), graceMs)
    while (!one.view.leader_exited) await once(one, 'change')
    clearTimeout(kill)
  }
  respondJson(stream, 200, one.view)
}

async function connect(one: FakeProcess, after: number, stream: ServerHttp2Stream): Promise<void> {
  const oldest = () => one.events[0]?.seq ?? one.view.output.newest_seq + 1
  if (after > 0 && after + 1 < oldest()) {
    return respondError(stream, 410, 'output_offset_expired', { oldest_available_seq: oldest() })
  }
  stream.respond({ ':status': 200 })
  const closed = new AbortController()
  stream.once('close', () => closed.abort())
  const next = (emitter: EventEmitter, event: string) => once(emitter, event, { signal: closed.signal }).catch(() => {})
  let seq = after > 0 ? after : oldest() - 1
  while (!stream.destroyed) {
    if (seq + 1 < oldest()) return finish(stream, 'error', expired(oldest()))
    const event = one.events.find((event) => event.seq > seq)
    if (event) {
      seq = event.seq
      const number = Buffer.alloc(8)
      number.writeBigUInt64BE(BigInt(seq))
      const frame = guestFrame(GUEST_CONNECT_FRAME[event.stream], Buffer.concat([number, event.bytes]))
      if (!stream.write(frame)) await next(stream, 'drain')
    } else if (one.view.state === 'failed') {
      return finish(stream, 'error', { code: 'process_failed', message: 'lost' })
    } else if (one.drained) {
      const { exit_code, signal } = one.view
      return finish(stream, 'exit', signal ? { signal } : { exit_code })
    } else await next(one, 'change')
  }
}

const expired = (oldest: number) => ({
  code: 'output_offset_expired',
  message: 'expired',
  oldest_available_seq: oldest,
})

const finish = (stream: ServerHttp2Stream, type: 'exit' | 'error', value: object) =>
  void stream.end(guestFrame(GUEST_CONNECT_FRAME[type], Buffer.from(JSON.stringify(value))))
