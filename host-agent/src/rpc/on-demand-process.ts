/**
 * A child process that answers requests and is started when a request needs it.
 *
 * When it dies, the next request starts another one. Requests that were under way then are sent to the next process if
 * they are safe to repeat; the others fail. A request that is not answered in time means that the process hangs in the
 * kernel: it is killed.
 */
import type { ChildProcess } from 'node:child_process'
import { EventEmitter } from 'node:events'
import type { CapableProcess } from '@warren/kit/capabilities'
import { closeChild, describeExit, forkChild } from './child-process.ts'
import { PendingCalls } from './pending-calls.ts'
import type { Method, Params, Result, RpcReply, RpcRequest } from './protocol.ts'

export type OnDemandProcessSettings<C> = {
  /** For messages. */
  name: string
  capabilities: CapableProcess
  program: string
  args: string[]
  /** Safe to do twice, so the caller need not know that the process died. */
  repeatable: readonly Method<C>[]
  limitMs: (method: Method<C>) => number
}

type Events<Notice> = {
  /** A message that is not a reply. */
  notice: [Notice]
  /** A request succeeded or failed. */
  answered: [{ method: string; seconds: number; failed: boolean }]
  /** The process exited without being closed. */
  died: [{ code: number | null; signal: NodeJS.Signals | null }]
}

class ProcessDiedError extends Error {}

export class OnDemandProcess<C, Notice extends object = never> extends EventEmitter<Events<Notice>> {
  readonly #settings: OnDemandProcessSettings<C>
  readonly #pending = new PendingCalls()
  #child: ChildProcess | undefined
  #closed = false

  constructor(settings: OnDemandProcessSettings<C>) {
    super()
    this.#settings = settings
  }

  /** Undefined when no process runs: before the first request, and after a death until the next request. */
  get pid(): number | undefined {
    return this.#child?.pid
  }

  async request<M extends Method<C>>(method: M, ...params: Params<C, M>): Promise<Result<C, M>> {
    const startedAt = performance.now()
    const report = (failed: boolean) =>
      (this as EventEmitter).emit('answered', { method, failed, seconds: (performance.now() - startedAt) / 1000 })
    try {
      const result = await this.#requestOrRepeat(method, params)
      report(false)
      return result
    } catch (error) {
      report(true)
      throw error
    }
  }

  async #requestOrRepeat<M extends Method<C>>(method: M, params: Params<C, M>): Promise<Result<C, M>> {
    try {
      return await this.#send(method, params)
    } catch (error) {
      const isRepeatable = error instanceof ProcessDiedError && this.#settings.repeatable.includes(method)
      if (!isRepeatable || this.#closed) throw error
      return this.#send(method, params)
    }
  }

  /** What the process created, and the programs it started, remain. It is killed if it has not exited after `limitMs`. */
  async close(limitMs?: number): Promise<void> {
    this.#closed = true
    if (this.#child !== undefined) await closeChild(this.#child, limitMs)
  }

  async #send<M extends Method<C>>(method: M, params: Params<C, M>): Promise<Result<C, M>> {
    const { name } = this.#settings
    if (this.#closed) throw new Error(`failed to send ${method} to ${name}: it is closed`)
    this.#child ??= this.#start()
    const child = this.#child
    const { id, reply } = this.#pending.add()
    const limitMs = this.#settings.limitMs(method)
    const timer = setTimeout(() => {
      this.#pending.reject(id, new Error(`${name} did not answer ${method} within ${limitMs} ms`))
      child.kill('SIGKILL')
      this.#onDeath(child, new ProcessDiedError(`${name} hung and was killed`))
    }, limitMs)
    const request: RpcRequest = { id, method, params }
    child.send(request, (error) => {
      // The process is dead and its exit was not reported yet: the next request must not be sent to it.
      if (error) this.#onDeath(child, new ProcessDiedError(`${name} exited`, { cause: error }))
    })
    return reply.finally(() => clearTimeout(timer)) as Promise<Result<C, M>>
  }

  #start(): ChildProcess {
    const { name, capabilities, program, args } = this.#settings
    const child = forkChild(capabilities, program, args)
    child.on('message', (message: RpcReply | Notice) => {
      if ('id' in message) this.#pending.settle(message as RpcReply)
      else (this as EventEmitter).emit('notice', message)
    })
    child.once('error', (error) =>
      this.#onDeath(child, new ProcessDiedError(`failed to start ${name}: ${error.message}`)),
    )
    child.once('exit', (code, signal) => {
      this.#onDeath(child, new ProcessDiedError(`${name} died (${describeExit(code, signal)})`))
      if (!this.#closed) (this as EventEmitter).emit('died', { code, signal })
    })
    return child
  }

  #onDeath(child: ChildProcess, error: ProcessDiedError): void {
    if (this.#child !== child) return
    this.#child = undefined
    this.#pending.rejectAll(error)
  }
}
