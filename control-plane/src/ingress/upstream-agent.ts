/**
 * Connections into sandboxes. One that has carried a request is kept for the next one, where that is safe:
 *
 *  - to the same port of the same sandbox, and only while its row is what it was: a pause, a resume, a switch of the
 *    ingress, anything that is written to it retires what was opened before;
 *  - for requests without a body alone. What is sent is then a head and nothing else, and no two programs can disagree
 *    about where it ends; and a kept connection that the sandbox closes at this very moment costs nothing but a second
 *    try;
 *  - as long as the sandbox says nothing out of turn.
 */
import { Agent, type ClientRequest, type ClientRequestArgs, type IncomingMessage } from 'node:http'
import type { ClientHttp2Stream } from 'node:http2'
import type { Duplex } from 'node:stream'
import type { Deps } from '../deps.ts'
import { resetStream } from '../hosts/session.ts'
import type { IngressStreams } from './streams.ts'
import { connectUpstream, type Upstream } from './upstream.ts'

/** Shorter than servers keep theirs (Node: 5 s), so that most are closed by us. */
const KEPT_MS = 4_000
/** Of one port: as many as a browser opens, and some. */
const KEPT_MAX = 16

const BODILESS = new Set(['GET', 'HEAD', 'OPTIONS'])

export const mayShare = ({ method = '', headers }: IncomingMessage): boolean =>
  BODILESS.has(method) && headers['content-length'] === undefined && headers['transfer-encoding'] === undefined

/** `gone`: the client left while it was being opened; later, its request is destroyed. */
export type UpstreamOptions = ClientRequestArgs & { way: Upstream; gone: AbortSignal }

export class UpstreamAgent extends Agent {
  readonly #deps: Deps
  readonly #streams: IngressStreams
  readonly #kept = new Map<Duplex, () => void>()

  constructor(deps: Deps, streams: IngressStreams) {
    super({ keepAlive: true, maxFreeSockets: KEPT_MAX, scheduling: 'lifo' })
    this.#deps = deps
    this.#streams = streams
  }

  get idleCount(): number {
    return this.#kept.size
  }

  override getName(options?: ClientRequestArgs): string {
    const { id, port, version } = (options as UpstreamOptions).way // Nobody else asks through this agent.
    return `${id} ${port} ${version}`
  }

  override createConnection(
    options: ClientRequestArgs,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    const { way, gone } = options as UpstreamOptions
    this.#open(way, gone).then(
      (stream) => callback?.(null, stream),
      // The agent's own callback takes an error alone; its type does not say so.
      (error) => (callback as ((error: Error) => void) | undefined)?.(error),
    )
  }

  override keepSocketAlive(stream: Duplex): boolean {
    const drop = () => stream.destroy(new Error('not needed any more'))
    const timer = setTimeout(drop, KEPT_MS).unref()
    const forget = () => {
      clearTimeout(timer)
      this.#kept.delete(stream)
      stream.off('data', drop).off('end', drop).off('close', forget)
    }
    this.#kept.set(stream, forget)
    // Read, or nothing of it would be heard before the next request takes it for its answer.
    stream.on('data', drop).on('end', drop).on('close', forget).resume()
    return true
  }

  override reuseSocket(stream: Duplex, request: ClientRequest): void {
    this.#kept.get(stream)?.()
    // The agent takes back its own listener here, and wants to hold the process; a stream of a session cannot.
    super.reuseSocket(Object.assign(stream, { ref() {} }), request)
    // It has said something this very moment: the request fails at once, and is asked again on another.
    if (stream.readableLength > 0) stream.destroy(new Error('spoke out of turn'))
  }

  /** Its life is its own: of a signal that outlives the opening the next request would know nothing. */
  async #open(way: Upstream, gone: AbortSignal): Promise<ClientHttp2Stream> {
    const opening = new AbortController()
    const giveUp = () => opening.abort(gone.reason)
    if (gone.aborted) giveUp()
    gone.addEventListener('abort', giveUp)
    try {
      const stream = await connectUpstream(this.#deps, way, opening.signal)
      this.#streams.add(way.id, stream)
      return stream
    } finally {
      gone.removeEventListener('abort', giveUp)
    }
  }
}

/** A connection for one request alone; it ends with its client. */
export async function openOnce(
  deps: Deps,
  streams: IngressStreams,
  way: Upstream,
  gone: AbortSignal,
): Promise<ClientHttp2Stream> {
  const stream = await connectUpstream(deps, way, gone)
  streams.add(way.id, stream)
  gone.addEventListener('abort', () => resetStream(stream), { once: true })
  return stream
}
