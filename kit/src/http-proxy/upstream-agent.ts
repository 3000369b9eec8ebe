/**
 * Connections from the proxy to the servers behind it. A connection that has carried a request is reused for the next one where
 * that is safe:
 *
 *  - only where the backend gives both requests the same pool name. A change of what is behind changes the name, which
 *    retires the connections opened before it;
 *  - only for requests without a body. Such a request is a head and nothing else, so two programs cannot disagree about
 *    where it ends, and if the server closes the connection at that moment, the request can simply be sent again;
 *  - only if the server has sent nothing while the connection was idle.
 */
import { Agent, type ClientRequest, type ClientRequestArgs, type IncomingMessage } from 'node:http'
import type { Duplex } from 'node:stream'
import type { Backend } from './backend.ts'

type Connector<Upstream> = Pick<Backend<unknown, Upstream>, 'connect' | 'poolName'>

/** Shorter than the keep-alive of common servers (5 s in Node), so that the proxy closes most connections itself. */
const IDLE_MS = 4_000
/** Per pool: somewhat more than a browser opens. */
const IDLE_MAX = 16

const BODILESS_METHODS = new Set(['GET', 'HEAD', 'OPTIONS'])

export const mayReuseConnection = ({ method = '', headers }: IncomingMessage): boolean =>
  BODILESS_METHODS.has(method) && headers['content-length'] === undefined && headers['transfer-encoding'] === undefined

/** `clientSignal` aborts when the client disconnects. (`signal` is an option of Node with another effect.) */
export type UpstreamRequestOptions<Upstream> = ClientRequestArgs & { upstream: Upstream; clientSignal: AbortSignal }

export class UpstreamAgent<Upstream> extends Agent {
  readonly #backend: Connector<Upstream>
  /** Idle connections, each with a function that removes it from here. */
  readonly #idle = new Map<Duplex, () => void>()

  constructor(backend: Connector<Upstream>) {
    super({ keepAlive: true, maxFreeSockets: IDLE_MAX, scheduling: 'lifo' })
    this.#backend = backend
  }

  get idleCount(): number {
    return this.#idle.size
  }

  override getName(options?: ClientRequestArgs): string {
    // All requests of this agent have one.
    return this.#backend.poolName((options as UpstreamRequestOptions<Upstream>).upstream)
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    const { upstream, clientSignal } = options as UpstreamRequestOptions<Upstream>
    this.#open(upstream, clientSignal).then(
      (stream) => callback?.(null, stream),
      // The agent calls it with an error alone, which the type does not allow.
      (error) => (callback as ((error: Error) => void) | undefined)?.(error),
    )
  }

  override keepSocketAlive(stream: Duplex): boolean {
    const drop = () => stream.destroy(new Error('idle connection closed'))
    const timer = setTimeout(drop, IDLE_MS).unref()
    const leaveIdle = () => {
      clearTimeout(timer)
      this.#idle.delete(stream)
      stream.off('data', drop).off('end', drop).off('close', leaveIdle)
    }
    this.#idle.set(stream, leaveIdle)
    // Read while idle: unread data would be taken for the response to the next request.
    stream.on('data', drop).on('end', drop).on('close', leaveIdle).resume()
    return true
  }

  override reuseSocket(stream: Duplex, request: ClientRequest): void {
    this.#idle.get(stream)?.()
    // The base class calls `ref`, which an HTTP/2 stream does not have.
    const socket = 'ref' in stream ? stream : Object.assign(stream, { ref() {} })
    super.reuseSocket(socket as Duplex, request)
    // Data arrived at this very moment: fail the request, so that it is sent again on another connection.
    if (stream.readableLength > 0) stream.destroy(new Error('the server sent data on an idle connection'))
  }

  /** The connection outlives the request that opened it, so the request's signal applies only until it is open. */
  async #open(upstream: Upstream, signal: AbortSignal): Promise<Duplex> {
    const opening = new AbortController()
    const abort = () => opening.abort(signal.reason)
    if (signal.aborted) abort()
    signal.addEventListener('abort', abort)
    try {
      return await this.#backend.connect(upstream, opening.signal)
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }
}

/** A connection for a single request. It ends when the client disconnects. */
export async function openDedicatedConnection<Upstream>(
  backend: Connector<Upstream>,
  upstream: Upstream,
  signal: AbortSignal,
): Promise<Duplex> {
  const stream = await backend.connect(upstream, signal)
  // With an error: a plain end may look like the end of a complete body.
  const abort = () => stream.destroyed || stream.destroy(new Error('the client disconnected'))
  signal.addEventListener('abort', abort, { once: true })
  return stream
}
