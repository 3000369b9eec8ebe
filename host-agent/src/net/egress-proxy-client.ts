/**
 * The host agent's end of the gate: it remembers every policy, so a gate that died is replaced by one that knows the
 * same. In between nothing answers: sandboxes have no names and no proxied connections, and none too many.
 */
import { type ChildProcess, fork } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import type {
  GateCalls,
  GateMessage,
  GateMethod,
  GateReport,
  GateRequest,
  GateSettings,
} from './egress-proxy-protocol.ts'
import type { Policy } from './policy.ts'

const PROGRAM = join(import.meta.dirname, 'egress-proxy/main.ts')
const START_LIMIT_MS = 20_000
const CLOSE_LIMIT_MS = 2_000
/** After a start that failed. */
const AGAIN_MS = 5
const RETRY_MS = 500

class GateDiedError extends Error {}

export class Gate {
  readonly #log: Pick<Log, 'warn'>
  readonly #settings: GateSettings
  readonly #policies = new Map<string, Policy>()
  readonly #waiting = new Map<number, { resolve: (result: unknown) => void; reject: (error: Error) => void }>()
  #child: Promise<ChildProcess>
  #pid: number | undefined
  #nextId = 1
  #closed = false

  /** Its sockets are open when this settles; the code of the error says whether a port was taken. */
  static async open(log: Pick<Log, 'warn'>, settings: GateSettings): Promise<Gate> {
    const gate = new Gate(log, settings)
    await gate.#child
    return gate
  }

  private constructor(log: Pick<Log, 'warn'>, settings: GateSettings) {
    this.#log = log
    this.#settings = settings
    this.#child = this.#start()
  }

  get pid(): number | undefined {
    return this.#pid
  }

  /** In force when this settles. */
  async set(ip: string, policy: Policy): Promise<void> {
    this.#policies.set(ip, policy)
    await this.#request('setPolicies', [{ ip, policy }])
  }

  async forget(ip: string): Promise<void> {
    this.#policies.delete(ip)
    await this.#request('forget', { ip })
  }

  report(ip: string): Promise<GateReport> {
    return this.#request('report', { ip })
  }

  async close(): Promise<void> {
    this.#closed = true
    const child = await this.#child.catch(() => undefined)
    if (child === undefined || child.exitCode !== null || child.signalCode !== null) return
    const { promise: ended, resolve } = Promise.withResolvers<void>()
    child.once('exit', () => resolve())
    if (child.connected) child.disconnect()
    const timer = setTimeout(() => child.kill('SIGKILL'), CLOSE_LIMIT_MS)
    await ended
    clearTimeout(timer)
  }

  /** All of them are safe to repeat, so one whose gate died goes to the next. */
  async #request<M extends GateMethod>(
    method: M,
    params: Parameters<GateCalls[M]>[0],
  ): Promise<ReturnType<GateCalls[M]>> {
    for (;;) {
      if (this.#closed) throw new Error(`the gate is closed, ${method} cannot run`)
      const child = await this.#child
      try {
        return (await this.#ask(child, method, params)) as ReturnType<GateCalls[M]>
      } catch (error) {
        if (!(error instanceof GateDiedError)) throw error
        // A turn of the loop, not only of promises: the news of its end comes there, and with it the next gate.
        await sleep(AGAIN_MS)
      }
    }
  }

  #ask(child: ChildProcess, method: GateMethod, params: unknown): Promise<unknown> {
    const id = this.#nextId++
    const { promise, resolve, reject } = Promise.withResolvers<unknown>()
    this.#waiting.set(id, { resolve, reject })
    const request: GateRequest = { id, method, params }
    // Dead, and we were not told yet: its exit follows.
    child.send(request, (error) => error && this.#settle(id)?.reject(new GateDiedError('the gate is gone')))
    return promise
  }

  #settle(id: number) {
    const waiting = this.#waiting.get(id)
    this.#waiting.delete(id)
    return waiting
  }

  async #start(): Promise<ChildProcess> {
    const child = fork(PROGRAM, [JSON.stringify(this.#settings)], {
      detached: true,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    const { promise: ready, resolve, reject } = Promise.withResolvers<void>()
    const timer = setTimeout(
      () => reject(new Error(`the gate was not ready within ${START_LIMIT_MS} ms`)),
      START_LIMIT_MS,
    )
    let started = false
    child.on('message', (message: GateMessage) => {
      if ('ready' in message) resolve()
      else if ('failed' in message) {
        const { code, message: why } = message.failed
        reject(Object.assign(new Error(`the gate could not start: ${why}`), { code }))
      } else this.#settle(message.id)?.resolve(message.result)
    })
    child.once('error', reject)
    child.once('exit', (code, signal) => {
      reject(new GateDiedError(`the gate ended (${signal ?? `exit code ${code}`})`))
      for (const id of [...this.#waiting.keys()]) this.#settle(id)?.reject(new GateDiedError('the gate died'))
      if (started) this.#lost({ code, signal })
    })
    try {
      await ready
      const policies = [...this.#policies].map(([ip, policy]) => ({ ip, policy }))
      if (policies.length > 0) await this.#ask(child, 'setPolicies', policies)
      started = true
      this.#pid = child.pid
      return child
    } catch (error) {
      child.kill('SIGKILL')
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  #lost(how: { code: number | null; signal: NodeJS.Signals | null }): void {
    this.#pid = undefined
    if (this.#closed) return
    this.#log.warn(how, 'the gate died; another one starts')
    this.#child = this.#startAgain()
    this.#child.catch(() => {}) // only when closed meanwhile; whoever waits for it is told
  }

  async #startAgain(): Promise<ChildProcess> {
    for (;;) {
      try {
        return await this.#start()
      } catch (error) {
        if (this.#closed) throw error
        this.#log.warn({ err: error }, 'the gate does not start')
        await sleep(RETRY_MS)
      }
    }
  }
}
