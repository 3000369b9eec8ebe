/**
 * Connections from the ingress into sandboxes. A connection that has carried a request is reused for the next one where
 * that is safe:
 *
 *  - to the same port of the same sandbox, and only while the sandbox's row is unchanged: a pause, a resume, a change of
 *    `ingress_enabled`, any write to the row retires the connections opened before it;
 *  - only for requests without a body. Such a request is a head and nothing else, so two programs cannot disagree about
 *    where it ends, and if the sandbox closes the connection at that moment, the request can simply be sent again;
 *  - only if the sandbox has sent nothing while the connection was idle.
 */
import { Agent, type ClientRequest, type ClientRequestArgs, type IncomingMessage } from 'node:http'
import type { ClientHttp2Stream } from 'node:http2'
import type { Duplex } from 'node:stream'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import type { IngressStreams } from './streams.ts'
import { connectUpstream, type Upstream } from './upstream.ts'

/** Shorter than the keep-alive of common servers (5 s in Node), so that the ingress closes most connections itself. */
const IDLE_MS = 4_000
/** Per port: somewhat more than a browser opens. */
const IDLE_MAX = 16

const BODILESS_METHODS = new Set(['GET', 'HEAD', 'OPTIONS'])

export const mayReuseConnection = ({ method = '', headers }: IncomingMessage): boolean =>
  BODILESS_METHODS.has(method) && headers['content-length'] === undefined && headers['transfer-encoding'] === undefined

/** `clientSignal` aborts when the client disconnects. (`signal` is an option of Node with another effect.) */
export type UpstreamRequestOptions = ClientRequestArgs & { upstream: Upstream; clientSignal: AbortSignal }

export class UpstreamAgent extends Agent {
  readonly #deps: Deps
  readonly #streams: IngressStreams
  /** Idle connections, each with a function that removes it from here. */
  readonly #idle = new Map<Duplex, () => void>()

  constructor(deps: Deps, streams: IngressStreams) {
    super({ keepAlive: true, maxFreeSockets: IDLE_MAX, scheduling: 'lifo' })
    this.#deps = deps
    this.#streams = streams
  }

  get idleCount(): number {
    return this.#idle.size
  }

  override getName(options?: ClientRequestArgs): string {
    const { id, port, version } = (options as UpstreamRequestOptions).upstream // All requests of this agent have one.
    return `${id} ${port} ${version}`
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    const { upstream, clientSignal } = options as UpstreamRequestOptions
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
    super.reuseSocket(Object.assign(stream, { ref() {} }), request)
    // Data arrived at this very moment: fail the request, so that it is sent again on another connection.
    if (stream.readableLength > 0) stream.destroy(new Error('the sandbox sent data on an idle connection'))
  }

  /** The connection outlives the request that opened it, so the request's signal applies only until it is open. */
  async #open(upstream: Upstream, signal: AbortSignal): Promise<ClientHttp2Stream> {
    const opening = new AbortController()
    const abort = () => opening.abort(signal.reason)
    if (signal.aborted) abort()
    signal.addEventListener('abort', abort)
    try {
      const stream = await connectUpstream(this.#deps, upstream, opening.signal)
      this.#streams.add(upstream.id, stream)
      return stream
    } finally {
      signal.removeEventListener('abort', abort)
    }
  }
}

/** A connection for a single request. It ends when the client disconnects. */
export async function openDedicatedConnection(
  deps: Deps,
  streams: IngressStreams,
  upstream: Upstream,
  signal: AbortSignal,
): Promise<ClientHttp2Stream> {
  const stream = await connectUpstream(deps, upstream, signal)
  streams.add(upstream.id, stream)
  signal.addEventListener('abort', () => resetStream(stream), { once: true })
  return stream
}
