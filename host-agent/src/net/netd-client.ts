/**
 * The host agent's end of netd: typed requests, and a netd that is there again when it died.
 *
 * A request that netd does not answer in time means that it hangs in the kernel: it is killed, and the next request
 * starts another. Of the requests under way when it dies, those that are safe to repeat go to the next netd; the others
 * fail, and what they had done is in the kernel, to be released or reaped.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { EventEmitter } from 'node:events'
import { join } from 'node:path'
import { checkInstance } from './names.ts'
import type { NetdMessage, NetdMethod, NetdParams, NetdRequest, NetdResult, ProgramExit } from './netd-protocol.ts'

/** Most take milliseconds; releasing waits up to 5 s for the kernel. */
const REQUEST_LIMIT_MS = 20_000
/** Those that end many slots wait up to 30 s, and then delete links one by one. */
const LONG_LIMIT_MS = 120_000
const LONG: ReadonlySet<NetdMethod> = new Set(['reapAll', 'tearDownHost'] as const)
const CLOSE_LIMIT_MS = 2_000
const PROGRAM = join(import.meta.dirname, 'netd/main.ts')

/** Safe to do twice, so a caller need not know that netd died under them. */
const REPEATABLE: ReadonlySet<NetdMethod> = new Set([
  'setUpHost',
  'tearDownHost',
  'releaseSlot',
  'changePolicy',
  'readSlot',
  'readUsage',
  'listSlots',
  'reapAll',
] as const)

class NetdDiedError extends Error {}

type Waiting = { resolve: (result: unknown) => void; reject: (error: Error) => void; timer: NodeJS.Timeout }
type Events = {
  /** A program started with spawnIn ended. Not told of programs whose netd died before them. */
  exit: [ProgramExit]
  /** netd died by itself; requests start the next one. */
  died: [{ code: number | null; signal: NodeJS.Signals | null }]
}

export class Netd extends EventEmitter<Events> {
  readonly #instance: string
  readonly #waiting = new Map<number, Waiting>()
  #child: ChildProcess | undefined
  #nextId = 1
  #closed = false

  constructor(instance: string) {
    super()
    this.#instance = checkInstance(instance)
  }

  /** Of the running netd; undefined between a death and the next request. */
  get pid(): number | undefined {
    return this.#child?.pid
  }

  async request<M extends NetdMethod>(method: M, ...params: NetdParams<M>): Promise<NetdResult<M>> {
    try {
      return await this.#ask(method, params)
    } catch (error) {
      if (!(error instanceof NetdDiedError) || !REPEATABLE.has(method) || this.#closed) throw error
      return this.#ask(method, params)
    }
  }

  #ask<M extends NetdMethod>(method: M, params: NetdParams<M>): Promise<NetdResult<M>> {
    if (this.#closed) return Promise.reject(new Error(`netd is closed, ${method} cannot run`))
    this.#child ??= this.#start()
    const child = this.#child
    const id = this.#nextId++
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    const limitMs = LONG.has(method) ? LONG_LIMIT_MS : REQUEST_LIMIT_MS
    const timer = setTimeout(() => {
      this.#settle(id)?.reject(new Error(`netd did not answer ${method} within ${limitMs} ms`))
      child.kill('SIGKILL')
      this.#lost(child, new NetdDiedError('netd hung and was killed'))
    }, limitMs)
    this.#waiting.set(id, { resolve, reject, timer })
    const request: NetdRequest = { id, method, params }
    child.send(request, (error) => {
      // Dead, and we were not told yet: the next request must not go the same way.
      if (error) this.#lost(child, new NetdDiedError('netd is gone', { cause: error }))
    })
    return promise as Promise<NetdResult<M>>
  }

  /** netd ends; what it made, and the programs it started, stay. */
  async close(): Promise<void> {
    this.#closed = true
    const child = this.#child
    if (child === undefined) return
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    child.once('exit', () => resolve())
    if (child.connected) child.disconnect()
    const timer = setTimeout(() => child.kill('SIGKILL'), CLOSE_LIMIT_MS)
    await ended
    clearTimeout(timer)
  }

  #start(): ChildProcess {
    // In its own session: it ends with its channel, not with the terminal.
    const child = fork(PROGRAM, [this.#instance], { detached: true, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    child.on('message', (message: NetdMessage) => this.#take(message))
    child.once('error', (error) => this.#lost(child, new NetdDiedError(`netd could not be started: ${error.message}`)))
    child.once('exit', (code, signal) => {
      this.#lost(child, new NetdDiedError(`netd died (${signal ?? `exit code ${code}`})`))
      if (!this.#closed) this.emit('died', { code, signal })
    })
    return child
  }

  #take(message: NetdMessage): void {
    if ('exit' in message) {
      this.emit('exit', message.exit)
      return
    }
    const waiting = this.#settle(message.id)
    if ('result' in message) waiting?.resolve(message.result)
    else waiting?.reject(Object.assign(new Error(message.error.message), { code: message.error.code }))
  }

  #settle(id: number): Waiting | undefined {
    const waiting = this.#waiting.get(id)
    clearTimeout(waiting?.timer)
    this.#waiting.delete(id)
    return waiting
  }

  #lost(child: ChildProcess, error: Error): void {
    if (this.#child !== child) return
    this.#child = undefined
    for (const id of [...this.#waiting.keys()]) this.#settle(id)?.reject(error)
  }
}
