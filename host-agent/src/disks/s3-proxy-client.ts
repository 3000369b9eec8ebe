/**
 * The host agent's client of the S3 proxy (s3-proxy/main.ts). It has every mount in memory, so that a proxy that died is
 * replaced by one with the same mounts at the same port. In between guests cannot connect, and try again.
 */
import type { ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import { Value } from 'typebox/value'
import { closeChild, describeExit, forkChild } from '../rpc/child-process.ts'
import { PendingCalls } from '../rpc/pending-calls.ts'
import type { Method, Params, Result, RpcReply, RpcRequest } from '../rpc/protocol.ts'
import {
  type S3ProxyCalls,
  S3ProxyCounts,
  S3ProxyMessage,
  S3ProxyMount,
  type S3ProxySettings,
} from './s3-proxy-protocol.ts'

/** Directly below that of an egress proxy without a launcher (config.ts), above every real account. */
export const S3_PROXY_UID = 1_610_612_734

const PROGRAM = join(import.meta.dirname, 's3-proxy/main.ts')
const START_LIMIT_MS = 60_000
/** A process that does not answer in this time hangs. It is killed and replaced. */
const REPLY_LIMIT_MS = 60_000
/** Before a request is sent to the next process. */
const RESEND_DELAY_MS = 5
/** After a start that failed. */
const RESTART_DELAY_MS = 500

class ProxyDiedError extends Error {}

export class S3Proxy {
  readonly #log: Pick<Log, 'warn'>
  readonly #mounts = new Map<string, S3ProxyMount>()
  readonly #pageKey = randomBytes(32).toString('hex')
  readonly #pending = new PendingCalls()
  #settings: S3ProxySettings
  #child: Promise<ChildProcess>
  #pid: number | undefined
  #closed = false

  /** Settles when the socket is open. When the port is taken, the error has the code EADDRINUSE. */
  static async open(log: Pick<Log, 'warn'>, settings: S3ProxySettings): Promise<S3Proxy> {
    const proxy = new S3Proxy(log, settings)
    await proxy.#child
    return proxy
  }

  private constructor(log: Pick<Log, 'warn'>, settings: S3ProxySettings) {
    this.#log = log
    this.#settings = settings
    this.#child = this.#start()
  }

  /** Undefined while the next process starts. */
  get pid(): number | undefined {
    return this.#pid
  }

  /** Chosen by the kernel if the settings have port 0, and then kept for the processes that follow. */
  get port(): number {
    return this.#settings.port
  }

  /** Adds mounts and replaces those with the same ids. The new credentials are in force when this settles. */
  async setMounts(mounts: S3ProxyMount[]): Promise<void> {
    for (const mount of mounts) {
      // Not with the error of the parser, which could quote a secret.
      if (!Value.Check(S3ProxyMount, mount)) throw new Error('a mount for the S3 proxy is not valid')
    }
    await this.#request('setMounts', { pageKey: this.#pageKey, mounts })
    for (const mount of mounts) this.#mounts.set(mount.id, mount)
  }

  /** Ends their requests. Ids that are unknown are ignored. */
  async removeMounts(ids: string[]): Promise<void> {
    for (const id of ids) this.#mounts.delete(id)
    await this.#request('removeMounts', { ids })
  }

  /** A process that replaces one that died starts at zero, as a counter may. Rejects if the proxy does not answer. */
  async counts(): Promise<S3ProxyCounts> {
    return Value.Parse(S3ProxyCounts, await this.#request('counts'))
  }

  async close(): Promise<void> {
    this.#closed = true
    const child = await this.#child.catch(() => undefined)
    if (child !== undefined) await closeChild(child)
  }

  /** All requests are safe to repeat: one whose process died is sent to the next process. */
  async #request<M extends Method<S3ProxyCalls>>(
    method: M,
    ...params: Params<S3ProxyCalls, M>
  ): Promise<Result<S3ProxyCalls, M>> {
    for (;;) {
      if (this.#closed) throw new Error(`failed to send ${method} to the S3 proxy: it is closed`)
      const child = await this.#child
      try {
        return (await this.#send(child, method, params)) as Result<S3ProxyCalls, M>
      } catch (error) {
        if (!(error instanceof ProxyDiedError)) throw error
        // The exit event, which replaces `#child`, needs a turn of the event loop.
        await sleep(RESEND_DELAY_MS)
      }
    }
  }

  #send(child: ChildProcess, method: Method<S3ProxyCalls>, params: unknown[]): Promise<unknown> {
    const { id, reply } = this.#pending.add()
    const timer = setTimeout(() => {
      this.#pending.reject(id, new Error(`the S3 proxy did not answer ${method} within ${REPLY_LIMIT_MS} ms`))
      child.kill('SIGKILL')
    }, REPLY_LIMIT_MS)
    const request: RpcRequest = { id, method, params }
    // The process is dead and its exit was not reported yet.
    child.send(request, (error) => error && this.#pending.reject(id, new ProxyDiedError('the S3 proxy exited')))
    return reply.finally(() => clearTimeout(timer))
  }

  async #start(): Promise<ChildProcess> {
    const child = forkChild('s3Proxy', PROGRAM, [JSON.stringify(this.#settings)])
    const { promise: ready, resolve, reject } = Promise.withResolvers<number>()
    const timer = setTimeout(
      () => reject(new Error(`the S3 proxy was not ready within ${START_LIMIT_MS} ms`)),
      START_LIMIT_MS,
    )
    let isReady = false
    child.on('message', (message: unknown) => {
      if (!Value.Check(S3ProxyMessage, message)) this.#log.warn('the S3 proxy sent a message that is not valid')
      else if ('ready' in message) resolve(message.ready.port)
      else if ('failed' in message) {
        const { code, message: reason } = message.failed
        reject(Object.assign(new Error(`the S3 proxy failed to start: ${reason}`), { code }))
      } else this.#pending.settle(message as RpcReply)
    })
    child.once('error', reject)
    child.once('exit', (code, signal) => {
      const error = new ProxyDiedError(`the S3 proxy died (${describeExit(code, signal)})`)
      reject(error)
      this.#pending.rejectAll(error)
      if (isReady) this.#onDeath({ code, signal })
    })
    try {
      this.#settings = { ...this.#settings, port: await ready }
      const mounts = [...this.#mounts.values()]
      if (mounts.length > 0) await this.#send(child, 'setMounts', [{ pageKey: this.#pageKey, mounts }])
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
    this.#log.warn(exit, 'the S3 proxy died and is restarted')
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
        this.#log.warn({ err: error }, 'failed to restart the S3 proxy; trying again')
        await sleep(RESTART_DELAY_MS)
      }
    }
  }
}
