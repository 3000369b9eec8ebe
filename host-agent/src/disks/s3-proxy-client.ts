/**
 * The host agent's client of the S3 proxy (s3-proxy/main.ts). The process starts with the first mount of this host, and ends some
 * minutes after the last one. The client has every mount in memory, so that a proxy that died is replaced by one with the same
 * mounts at the same port. In between the firewall lets connections of guests wait (net/netd/nft/host-table.ts).
 *
 * Order of a start: the process gets what it must know about the machine, then its mounts, and only then listens, so that no guest finds a proxy
 * that does not know its mount yet.
 *
 * The proxy parses what guests send, so it is not trusted: one that sends what the protocol does not contain, answers what was not
 * asked, or does not answer, is killed and replaced.
 */
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { EventEmitter, once } from 'node:events'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { type JsonLines, openJsonLines } from '@warren/kit/json-lines'
import type { Log } from '@warren/kit/log'
import { withTimeout } from '@warren/kit/timeout'
import { Value } from 'typebox/value'
import { closeChild, describeExit, hasExited } from '../rpc/child-process.ts'
import { logOutput } from '../rpc/log-output.ts'
import { PendingCalls } from '../rpc/pending-calls.ts'
import { type Method, type Params, type Result, RpcReply, type RpcRequest } from '../rpc/protocol.ts'
import { listLoopbackPorts } from './s3-proxy-machine.ts'
import {
  CHANNEL_FD,
  MESSAGE_MAX_BYTES,
  type MountAnswer,
  S3_PROXY_RESULTS,
  type S3ProxyCalls,
  type S3ProxyCounts,
  type S3ProxyMachine,
  S3ProxyMount,
  S3ProxyNotice,
  type S3ProxySettings,
  S3ProxyStart,
} from './s3-proxy-protocol.ts'

const START_LIMIT_MS = 20_000
/** Answers take milliseconds; a machine that swaps may take seconds. */
const ANSWER_LIMIT_MS = 20_000
/** For a request that waits for the next process. Then it is not sent any more. */
const REQUEST_LIMIT_MS = 45_000
/** Before a request is sent to the next process. */
const RESEND_DELAY_MS = 5
/** After a start that failed. */
const RESTART_DELAY_MS = 500
/** A process without mounts needs memory for nothing; another sandbox with a disk may follow soon. */
const IDLE_MS = 10 * 60_000

class ProxyDiedError extends Error {}

/** Each process has its own calls, so that none can answer what another one was asked. */
type Running = { child: ChildProcess; channel: JsonLines; pending: PendingCalls }

export type S3ProxyDeps = {
  log: Pick<Log, 'warn'>
  /** The descriptors of the process are those that s3-proxy-jail.ts describes. */
  start: (settings: S3ProxySettings) => ChildProcess
  readMachine: () => Promise<S3ProxyMachine>
  /** Opens exactly these ports of loopback to the proxy. */
  openLoopback?: (ports: readonly number[]) => Promise<void>
  /** Other times for tests. */
  idleMs?: number
  answerLimitMs?: number
  requestLimitMs?: number
}

type Events = { answered: [MountAnswer] }

export class S3Proxy extends EventEmitter<Events> {
  readonly #deps: S3ProxyDeps
  readonly #mounts = new Map<string, S3ProxyMount>()
  readonly #pageKey = randomBytes(32).toString('hex')
  #settings: S3ProxySettings
  #machine: S3ProxyMachine | undefined
  /** Mounts on their way to the process. */
  readonly #arriving = new Set<Map<string, S3ProxyMount>>()
  #openedPorts = ''
  #lastOpening: Promise<unknown> = Promise.resolve()
  /** Undefined while no process is needed. */
  #running: Promise<Running> | undefined
  #pid: number | undefined
  #idleTimer: NodeJS.Timeout | undefined
  #closed = false

  constructor(deps: S3ProxyDeps, settings: S3ProxySettings) {
    super()
    this.setMaxListeners(0) // One for each VM.
    this.#deps = deps
    this.#settings = settings
  }

  /** Undefined while no process runs, or the next one starts. */
  get pid(): number | undefined {
    return this.#pid
  }

  /** Chosen by the kernel if the settings have port 0, and then kept for the processes that follow. */
  get port(): number {
    return this.#settings.port
  }

  /** Starts the process before there is a mount. When the port is taken, the error has the code EADDRINUSE. */
  async start(): Promise<void> {
    await this.#getRunning()
    this.#watchIdle()
  }

  /** Adds mounts and replaces those with the same ids. The new credentials are in force when this settles. */
  async setMounts(mounts: S3ProxyMount[]): Promise<void> {
    for (const mount of mounts) {
      // Not with the error of the parser, which could quote a secret.
      if (!Value.Check(S3ProxyMount, mount)) throw new Error('a mount for the S3 proxy is not valid')
    }
    clearTimeout(this.#idleTimer)
    const arriving = new Map(mounts.map((mount) => [mount.id, mount]))
    this.#arriving.add(arriving)
    try {
      await this.#openLoopback()
      await this.#request('setMounts', () => ({ pageKey: this.#pageKey, mounts: [...arriving.values()] }))
      for (const [id, mount] of arriving) this.#mounts.set(id, mount)
    } finally {
      this.#arriving.delete(arriving)
      this.#watchIdle()
    }
  }

  /** Ends their requests. Ids that are unknown are ignored. A process that starts meanwhile does so without them. */
  async removeMounts(ids: string[]): Promise<void> {
    for (const mounts of [this.#mounts, ...this.#arriving]) for (const id of ids) mounts.delete(id)
    this.#watchIdle()
    if (this.#pid !== undefined) await this.#request('removeMounts', () => ({ ids }))
    await this.#openLoopback()
  }

  /** Passes on what has changed of the machine since the last time. */
  async refreshMachine(): Promise<void> {
    if (this.#pid === undefined) return
    const machine = await this.#deps.readMachine()
    if (JSON.stringify(machine) === JSON.stringify(this.#machine)) return
    this.#machine = machine
    await this.#request('setMachine', () => machine)
  }

  /** Undefined while no process runs. A process that replaces one that died starts at zero, as a counter may. */
  async counts(): Promise<S3ProxyCounts | undefined> {
    if (this.#pid === undefined || this.#running === undefined) return undefined
    return this.#send(await this.#running, 'counts', []) as Promise<S3ProxyCounts>
  }

  async close(): Promise<void> {
    this.#closed = true
    clearTimeout(this.#idleTimer)
    const running = await this.#running?.catch(() => undefined)
    if (running !== undefined) await closeChild(running.child, undefined, running.channel.end)
  }

  /**
   * All requests are safe to repeat: one whose process died is sent to the next process, with the parameter of that moment. One that
   * is given up is not sent later, when its caller may have done something else instead.
   */
  async #request<M extends Method<S3ProxyCalls>>(
    method: M,
    param: () => Params<S3ProxyCalls, M>[0],
  ): Promise<Result<S3ProxyCalls, M>> {
    const giveUpAt = performance.now() + (this.#deps.requestLimitMs ?? REQUEST_LIMIT_MS)
    for (;;) {
      const leftMs = Math.max(0, giveUpAt - performance.now())
      const running = await withTimeout(leftMs, this.#getRunning(), `to reach the S3 proxy for ${method}`)
      try {
        return (await this.#send(running, method, [param()])) as Result<S3ProxyCalls, M>
      } catch (error) {
        if (!(error instanceof ProxyDiedError) || performance.now() > giveUpAt) throw error
        // The exit event, which replaces `#running`, needs a turn of the event loop.
        await sleep(RESEND_DELAY_MS)
      }
    }
  }

  #getRunning(): Promise<Running> {
    if (this.#closed) throw new Error('the S3 proxy is closed')
    if (this.#running === undefined) {
      const first = this.#start()
      this.#running = first
      // The next request tries again.
      first.catch(() => {
        if (this.#running === first) this.#running = undefined
      })
    }
    return this.#running
  }

  async #send(running: Running, method: Method<S3ProxyCalls>, params: unknown[]): Promise<unknown> {
    const { child, channel, pending } = running
    // Its exit was reported already, and no reply will come.
    if (hasExited(child)) throw new ProxyDiedError('the S3 proxy exited')
    const { id, reply } = pending.add()
    const limitMs = this.#deps.answerLimitMs ?? ANSWER_LIMIT_MS
    const timer = setTimeout(
      () => this.#kill(child, new Error(`${method} was not answered within ${limitMs} ms`)),
      limitMs,
    )
    channel.send({ id, method, params } satisfies RpcRequest)
    const result = await reply.finally(() => clearTimeout(timer))
    if (Value.Check(S3_PROXY_RESULTS[method], result)) return result
    this.#kill(child, new Error(`the answer to ${method} does not match its schema`))
    throw new ProxyDiedError('the S3 proxy sent an invalid answer')
  }

  async #start(): Promise<Running> {
    const machine = await this.#deps.readMachine()
    const child = this.#deps.start(this.#settings)
    // It was not started, and if descriptors are lacking it has no channel either. The error follows.
    if (child.pid === undefined) throw (await once(child, 'error'))[0]
    const { promise: ready, resolve, reject } = Promise.withResolvers<void>()
    const timer = setTimeout(
      () => reject(new Error(`the S3 proxy was not ready within ${START_LIMIT_MS} ms`)),
      START_LIMIT_MS,
    )
    const pending = new PendingCalls()
    let hasStarted = false
    let isReady = false
    const channel = openJsonLines(child.stdio[CHANNEL_FD] as Duplex, {
      maxBytes: MESSAGE_MAX_BYTES,
      onMessage: (message) => {
        if (hasExited(child)) return
        if (hasStarted) return this.#receive(pending, message)
        if (!Value.Check(S3ProxyStart, message)) throw new Error('the first message does not match its schema')
        hasStarted = true
        if ('ready' in message) return resolve()
        const { code, message: reason } = message.failed
        reject(Object.assign(new Error(`the S3 proxy failed to start: ${reason}`), { code }))
      },
      onViolation: (error) => this.#kill(child, error),
      // Without its channel it is of no use. Usually it has exited.
      onClose: () => void child.kill('SIGKILL'),
    })
    logOutput('S3 proxy', child.stderr!, this.#deps.log) // A pipe.
    child.on('error', reject)
    child.once('exit', (code, signal) => {
      const error = new ProxyDiedError(`the S3 proxy died (${describeExit(code, signal)})`)
      reject(error)
      pending.rejectAll(error)
      if (isReady) this.#onDeath(child, { code, signal })
    })
    try {
      await ready
      const running = { child, channel, pending }
      await this.#prepare(running, machine)
      isReady = true
      this.#pid = child.pid
      return running
    } catch (error) {
      child.kill('SIGKILL')
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  async #prepare(running: Running, machine: S3ProxyMachine): Promise<void> {
    this.#machine = machine
    await this.#send(running, 'setMachine', [machine])
    const mounts = [...this.#mounts.values()]
    if (mounts.length > 0) await this.#send(running, 'setMounts', [{ pageKey: this.#pageKey, mounts }])
    const gone = () => mounts.filter(({ id }) => !this.#mounts.has(id)).map(({ id }) => id)
    if (gone().length > 0) await this.#send(running, 'removeMounts', [{ ids: gone() }])
    const { port } = (await this.#send(running, 'listen', [])) as { port: number }
    // Guests send their tokens there.
    if (this.port !== 0 && port !== this.port) throw new Error(`the S3 proxy listens at port ${port}, not ${this.port}`)
    this.#settings = { ...this.#settings, port }
    // Those that were removed in the last moment: from here on the process is sent what is removed.
    if (gone().length > 0) void this.#send(running, 'removeMounts', [{ ids: gone() }]).catch(() => {}) // It died.
  }

  /** An error that is thrown here is a violation of the protocol (json-lines.ts). */
  #receive(pending: PendingCalls, message: unknown): void {
    if (Value.Check(S3ProxyNotice, message)) return void this.emit('answered', message.answered)
    if (!Value.Check(RpcReply, message)) throw new Error('a reply does not match its schema')
    if (!pending.settle(message)) throw new Error(`reply ${message.id} is to no request`)
  }

  #kill(child: ChildProcess, reason: Error): void {
    this.#deps.log.warn({ err: reason }, 'the S3 proxy does not follow its protocol and is killed')
    child.kill('SIGKILL')
  }

  #onDeath(child: ChildProcess, exit: { code: number | null; signal: NodeJS.Signals | null }): void {
    if (this.#pid !== child.pid) return // It was ended because it had no mounts.
    this.#pid = undefined
    if (this.#closed) return
    this.#deps.log.warn(exit, 'the S3 proxy died and is restarted')
    this.#running = this.#restart()
    // Rejects only when closed in the meantime; a request that waits for it gets the error.
    this.#running.catch(() => {})
  }

  async #restart(): Promise<Running> {
    for (;;) {
      try {
        return await this.#start()
      } catch (error) {
        if (this.#closed) throw error
        this.#deps.log.warn({ err: error }, 'failed to restart the S3 proxy; trying again')
        await sleep(RESTART_DELAY_MS)
      }
    }
  }

  #watchIdle(): void {
    clearTimeout(this.#idleTimer)
    if (this.#closed || this.#mounts.size > 0 || this.#arriving.size > 0) return
    this.#idleTimer = setTimeout(() => void this.#endIdle(), this.#deps.idleMs ?? IDLE_MS).unref()
  }

  async #endIdle(): Promise<void> {
    if (this.#pid === undefined || this.#mounts.size > 0 || this.#arriving.size > 0) return
    const ended = this.#running
    this.#pid = undefined
    this.#running = undefined
    const running = await ended?.catch(() => undefined)
    if (running !== undefined) await closeChild(running.child, undefined, running.channel.end)
  }

  /** For all mounts that there are and that arrive, one change after the other: a port must not close while a mount needs it. */
  #openLoopback(): Promise<void> {
    const { openLoopback, readMachine } = this.#deps
    if (openLoopback === undefined) return Promise.resolve()
    const opening = this.#lastOpening.then(async () => {
      const machine = this.#machine ?? (await readMachine())
      const ports = listLoopbackPorts(
        [...this.#mounts.values(), ...[...this.#arriving].flatMap((mounts) => [...mounts.values()])],
        machine,
      )
      if (ports.join() === this.#openedPorts) return
      await openLoopback(ports)
      this.#openedPorts = ports.join()
    })
    this.#lastOpening = opening.catch(() => {}) // The caller gets the error.
    return opening
  }
}
