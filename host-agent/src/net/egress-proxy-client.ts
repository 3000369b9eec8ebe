/**
 * The host agent's client of the egress proxy (egress-proxy/main.ts). It stores every policy, so that a proxy that died is
 * replaced by one with the same policies. In between no process answers: sandboxes cannot resolve names or open proxied
 * connections, and nothing passes that a policy forbids.
 */
import type { ChildProcess } from 'node:child_process'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import { closeChild, describeExit, forkChild } from '../rpc/child-process.ts'
import { PendingCalls } from '../rpc/pending-calls.ts'
import type { Method, Params, Result, RpcRequest } from '../rpc/protocol.ts'
import type {
  EgressProxyCalls,
  EgressProxyCounts,
  EgressProxyMessage,
  EgressProxyReport,
  EgressProxySettings,
} from './egress-proxy-protocol.ts'
import type { Policy } from './policy.ts'

const PROGRAM = join(import.meta.dirname, 'egress-proxy/main.ts')
const START_LIMIT_MS = 20_000
/** Before a request is sent to the next process. */
const RESEND_DELAY_MS = 5
/** After a start that failed. */
const RESTART_DELAY_MS = 500

class ProxyDiedError extends Error {}

export class EgressProxy {
  readonly #log: Pick<Log, 'warn'>
  readonly #settings: EgressProxySettings
  readonly #policies = new Map<string, Policy>()
  readonly #pending = new PendingCalls()
  #child: Promise<ChildProcess>
  #pid: number | undefined
  #closed = false

  /** Settles when the sockets are open. When a port is taken, the error has the code EADDRINUSE. */
  static async open(log: Pick<Log, 'warn'>, settings: EgressProxySettings): Promise<EgressProxy> {
    const proxy = new EgressProxy(log, settings)
    await proxy.#child
    return proxy
  }

  private constructor(log: Pick<Log, 'warn'>, settings: EgressProxySettings) {
    this.#log = log
    this.#settings = settings
    this.#child = this.#start()
  }

  /** Undefined while the next process starts. */
  get pid(): number | undefined {
    return this.#pid
  }

  /** The policy is in force when this settles. */
  async setPolicy(ip: string, policy: Policy): Promise<void> {
    this.#policies.set(ip, policy)
    await this.#request('setPolicies', [{ ip, policy }])
  }

  async removeSandbox(ip: string): Promise<void> {
    this.#policies.delete(ip)
    await this.#request('removeSandbox', { ip })
  }

  report(ip: string): Promise<EgressProxyReport> {
    return this.#request('report', { ip })
  }

  /** A process that replaces one that died starts at zero, as a counter may. */
  counts(): Promise<EgressProxyCounts> {
    return this.#request('counts')
  }

  async close(): Promise<void> {
    this.#closed = true
    const child = await this.#child.catch(() => undefined)
    if (child !== undefined) await closeChild(child)
  }

  /** All requests are safe to repeat: one whose process died is sent to the next process. */
  async #request<M extends Method<EgressProxyCalls>>(
    method: M,
    ...params: Params<EgressProxyCalls, M>
  ): Promise<Result<EgressProxyCalls, M>> {
    for (;;) {
      if (this.#closed) throw new Error(`failed to send ${method} to the egress proxy: it is closed`)
      const child = await this.#child
      try {
        return (await this.#send(child, method, params)) as Result<EgressProxyCalls, M>
      } catch (error) {
        if (!(error instanceof ProxyDiedError)) throw error
        // The exit event, which replaces `#child`, needs a turn of the event loop.
        await sleep(RESEND_DELAY_MS)
      }
    }
  }

  #send(child: ChildProcess, method: Method<EgressProxyCalls>, params: unknown[]): Promise<unknown> {
    const { id, reply } = this.#pending.add()
    const request: RpcRequest = { id, method, params }
    // The process is dead and its exit was not reported yet.
    child.send(request, (error) => error && this.#pending.reject(id, new ProxyDiedError('the egress proxy exited')))
    return reply
  }

  async #start(): Promise<ChildProcess> {
    const child = forkChild(PROGRAM, [JSON.stringify(this.#settings)])
    const { promise: ready, resolve, reject } = Promise.withResolvers<void>()
    const timer = setTimeout(
      () => reject(new Error(`the egress proxy was not ready within ${START_LIMIT_MS} ms`)),
      START_LIMIT_MS,
    )
    let isReady = false
    child.on('message', (message: EgressProxyMessage) => {
      if ('ready' in message) resolve()
      else if ('failed' in message) {
        const { code, message: reason } = message.failed
        reject(Object.assign(new Error(`the egress proxy failed to start: ${reason}`), { code }))
      } else this.#pending.settle(message)
    })
    child.once('error', reject)
    child.once('exit', (code, signal) => {
      const error = new ProxyDiedError(`the egress proxy died (${describeExit(code, signal)})`)
      reject(error)
      this.#pending.rejectAll(error)
      if (isReady) this.#onDeath({ code, signal })
    })
    try {
      await ready
      const policies = [...this.#policies].map(([ip, policy]) => ({ ip, policy }))
      if (policies.length > 0) await this.#send(child, 'setPolicies', [policies])
      isReady = true
      this.#pid = child.pid
      return child
    } catch (error) {
      child.kill('SIGKILL')
      throw error
    } finally {
      clearTimeout(timer)
    }
  }

  #onDeath(exit: { code: number | null; signal: NodeJS.Signals | null }): void {
    this.#pid = undefined
    if (this.#closed) return
    this.#log.warn(exit, 'the egress proxy died and is restarted')
    this.#child = this.#restart()
    // Rejects only when closed in the meantime; a request that waits for it gets the error.
    this.#child.catch(() => {})
  }

  async #restart(): Promise<ChildProcess> {
    for (;;) {
      try {
        return await this.#start()
      } catch (error) {
        if (this.#closed) throw error
        this.#log.warn({ err: error }, 'failed to restart the egress proxy; trying again')
        await sleep(RESTART_DELAY_MS)
      }
    }
  }
}
