/**
 * The host agent's client of the egress proxy (egress-proxy/main.ts). It stores every policy, so that a proxy that died is
 * replaced by one with the same policies. In between no process answers: sandboxes cannot resolve names or open proxied
 * connections, and nothing passes that a policy forbids.
 *
 * The proxy parses what guests send, so it is not trusted: one that sends what the protocol does not contain, answers what was not
 * asked, or does not answer, is killed and replaced.
 */
import type { ChildProcess } from 'node:child_process'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { type JsonLines, openJsonLines } from '@warren/kit/json-lines'
import type { Log } from '@warren/kit/log'
import { matches } from '@warren/kit/matches'
import { closeChild, describeExit, hasExited } from '../rpc/child-process.ts'
import { logOutput } from '../rpc/log-output.ts'
import { PendingCalls } from '../rpc/pending-calls.ts'
import { type Method, type Params, type Result, RpcReply, type RpcRequest } from '../rpc/protocol.ts'
import {
  CHANNEL_FD,
  EGRESS_PROXY_RESULTS,
  type EgressProxyCalls,
  type EgressProxyCounts,
  type EgressProxyReport,
  type EgressProxySettings,
  EgressProxyStart,
  MESSAGE_MAX_BYTES,
  type Upstream,
} from './egress-proxy-protocol.ts'
import type { Policy } from './policy.ts'

const START_LIMIT_MS = 20_000
/** Answers take milliseconds; a machine that swaps may take seconds. */
const ANSWER_LIMIT_MS = 20_000
/** Before a request is sent to the next process. */
const RESEND_DELAY_MS = 5
/** After a start that failed. */
const RESTART_DELAY_MS = 500

class ProxyDiedError extends Error {}

/** Each process has its own calls, so that none can answer what another one was asked. */
type Running = { child: ChildProcess; channel: JsonLines; pending: PendingCalls }
/** Its descriptors are those that egress-proxy-jail.ts describes. */
export type StartProxy = (settings: EgressProxySettings) => ChildProcess

export class EgressProxy {
  readonly #log: Pick<Log, 'warn'>
  readonly #startProcess: StartProxy
  readonly #answerLimitMs: number
  #settings: EgressProxySettings
  readonly #policies = new Map<string, Policy>()
  #running: Promise<Running>
  #pid: number | undefined
  #closed = false

  /** Settles when the sockets are open. When a port is taken, the error has the code EADDRINUSE. */
  static async open(
    log: Pick<Log, 'warn'>,
    start: StartProxy,
    settings: EgressProxySettings,
    answerLimitMs = ANSWER_LIMIT_MS,
  ): Promise<EgressProxy> {
    const proxy = new EgressProxy(log, start, settings, answerLimitMs)
    await proxy.#running
    return proxy
  }

  private constructor(log: Pick<Log, 'warn'>, start: StartProxy, settings: EgressProxySettings, answerLimitMs: number) {
    this.#log = log
    this.#startProcess = start
    this.#settings = settings
    this.#answerLimitMs = answerLimitMs
    this.#running = this.#start()
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

  async setUpstreams(upstreams: Upstream[]): Promise<void> {
    if (JSON.stringify(upstreams) === JSON.stringify(this.#settings.upstreams)) return
    this.#settings = { ...this.#settings, upstreams }
    await this.#request('setUpstreams', upstreams)
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
    const running = await this.#running.catch(() => undefined)
    if (running !== undefined) await closeChild(running.child, undefined, running.channel.end)
  }

  /** All requests are safe to repeat: one whose process died is sent to the next process. */
  async #request<M extends Method<EgressProxyCalls>>(
    method: M,
    ...params: Params<EgressProxyCalls, M>
  ): Promise<Result<EgressProxyCalls, M>> {
    for (;;) {
      if (this.#closed) throw new Error(`failed to send ${method} to the egress proxy: it is closed`)
      const running = await this.#running
      try {
        return (await this.#send(running, method, params)) as Result<EgressProxyCalls, M>
      } catch (error) {
        if (!(error instanceof ProxyDiedError)) throw error
        // The exit event, which replaces `#running`, needs a turn of the event loop.
        await sleep(RESEND_DELAY_MS)
      }
    }
  }

  async #send(running: Running, method: Method<EgressProxyCalls>, params: unknown[]): Promise<unknown> {
    const { child, channel, pending } = running
    // Its exit was reported already, and no reply will come.
    if (hasExited(child)) throw new ProxyDiedError('the egress proxy exited')
    const { id, reply } = pending.add()
    const answerLimitMs = this.#answerLimitMs
    const timer = setTimeout(
      () => this.#kill(child, new Error(`${method} was not answered within ${answerLimitMs} ms`)),
      answerLimitMs,
    )
    channel.send({ id, method, params } satisfies RpcRequest)
    const result = await reply.finally(() => clearTimeout(timer))
    if (matches(EGRESS_PROXY_RESULTS[method], result)) return result
    this.#kill(child, new Error(`the answer to ${method} does not match its schema`))
    throw new ProxyDiedError('the egress proxy sent an invalid answer')
  }

  async #start(): Promise<Running> {
    const child = this.#startProcess(this.#settings)
    const { promise: ready, resolve, reject } = Promise.withResolvers<void>()
    const timer = setTimeout(
      () => reject(new Error(`the egress proxy was not ready within ${START_LIMIT_MS} ms`)),
      START_LIMIT_MS,
    )
    const pending = new PendingCalls()
    let hasStarted = false
    let isReady = false
    const channel = openJsonLines(child.stdio[CHANNEL_FD] as Duplex, {
      maxBytes: MESSAGE_MAX_BYTES,
      onMessage: (message) => {
        if (hasExited(child)) return
        if (hasStarted) return settleReply(pending, message)
        if (!matches(EgressProxyStart, message)) throw new Error('the first message does not match its schema')
        hasStarted = true
        if ('ready' in message) return resolve()
        const { code, message: reason } = message.failed
        reject(Object.assign(new Error(`the egress proxy failed to start: ${reason}`), { code }))
      },
      onViolation: (error) => this.#kill(child, error),
      // Without its channel it is of no use. Usually it has exited.
      onClose: () => void child.kill('SIGKILL'),
    })
    logOutput('egress proxy', child.stderr!, this.#log) // A pipe.
    child.on('error', reject)
    child.once('exit', (code, signal) => {
      const error = new ProxyDiedError(`the egress proxy died (${describeExit(code, signal)})`)
      reject(error)
      pending.rejectAll(error)
      if (isReady) this.#onDeath({ code, signal })
    })
    try {
      await ready
      const running = { child, channel, pending }
      const policies = [...this.#policies].map(([ip, policy]) => ({ ip, policy }))
      if (policies.length > 0) await this.#send(running, 'setPolicies', [policies])
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

  #kill(child: ChildProcess, reason: Error): void {
    this.#log.warn({ err: reason }, 'the egress proxy does not follow its protocol and is killed')
    child.kill('SIGKILL')
  }

  #onDeath(exit: { code: number | null; signal: NodeJS.Signals | null }): void {
    this.#pid = undefined
    if (this.#closed) return
    this.#log.warn(exit, 'the egress proxy died and is restarted')
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
        this.#log.warn({ err: error }, 'failed to restart the egress proxy; trying again')
        await sleep(RESTART_DELAY_MS)
      }
    }
  }
}

/** An error that is thrown here is a violation of the protocol (json-lines.ts). */
function settleReply(pending: PendingCalls, message: unknown): void {
  if (!matches(RpcReply, message)) throw new Error('a reply does not match its schema')
  if (!pending.settle(message)) throw new Error(`reply ${message.id} is to no request`)
}
