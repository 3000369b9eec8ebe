/**
 * Reads the body of a deploy request, which the caller has already signed for, and has it parsed in a worker thread.
 *
 * A body needs up to five times its size in memory, so only a few are parsed at once; the others wait for a place. Many
 * may be on their way at once, because a slow client holds only the bytes that it has sent. What all of them hold together
 * is limited, and so is the number of bodies from one address.
 */
import type { IncomingMessage } from 'node:http'
import type { Config } from '../config.ts'
import { badRequest, GatewayError, tooMany } from '../http/errors.ts'
import type { ParsedBody } from './parse-body.ts'
import { ParserThreads } from './parser-threads.ts'

const PLACES = 4
const READERS_MAX = 256
const READERS_PER_CLIENT = 16
const RETRY_AFTER_S = 10

type BodyConfig = Pick<Config, 'bodyMaxBytes' | 'expandedMaxBytes' | 'fileMaxBytes' | 'entriesMax' | 'reservedNames'>

export class BodyReceiver {
  readonly #config: BodyConfig
  readonly #threads = new ParserThreads()
  /** The clients of all bodies that are being read, waiting or parsed. */
  readonly #clients: string[] = []
  readonly #waiting: (() => void)[] = []
  #freePlaces = PLACES
  #heldBytes = 0

  constructor(config: BodyConfig) {
    this.#config = config
  }

  /** Holds a place until `use` has settled, because the files of the body stay in memory that long. */
  async receive<Result>(
    client: string,
    request: IncomingMessage,
    use: (body: ParsedBody) => Promise<Result>,
  ): Promise<Result> {
    checkLength(request, this.#config.bodyMaxBytes)
    const ofClient = this.#clients.filter((one) => one === client).length
    if (this.#clients.length >= READERS_MAX || ofClient >= READERS_PER_CLIENT) throw tooManyUploads()
    this.#clients.push(client)
    const chunks: Buffer[] = []
    try {
      await this.#read(request, chunks)
      return await this.#inPlace(async () => use(await this.#threads.parse(join(chunks), this.#config)))
    } finally {
      this.#heldBytes -= byteLength(chunks)
      this.#clients.splice(this.#clients.indexOf(client), 1)
    }
  }

  /** When a limit is reached the rest stays unread: destroying the stream would close the connection before the reply. */
  async #read(request: IncomingMessage, chunks: Buffer[]): Promise<void> {
    const { bodyMaxBytes } = this.#config
    let bytes = 0
    try {
      for await (const chunk of request.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
        bytes += chunk.length
        if (bytes > bodyMaxBytes) throw tooLarge(bodyMaxBytes)
        if (this.#heldBytes + chunk.length > PLACES * bodyMaxBytes) throw tooManyUploads()
        chunks.push(chunk)
        this.#heldBytes += chunk.length
      }
    } catch (error) {
      if (error instanceof GatewayError) throw error
      throw badRequest('body', 'ended before it was complete') // The client disconnected; only the log sees this.
    }
  }

  /** A place passes to the next that waits without being free in between. */
  async #inPlace<Result>(work: () => Promise<Result>): Promise<Result> {
    if (this.#freePlaces > 0) this.#freePlaces--
    else await new Promise<void>((resolve) => this.#waiting.push(resolve))
    try {
      return await work()
    } finally {
      const next = this.#waiting.shift()
      if (next) next()
      else this.#freePlaces++
    }
  }
}

const tooManyUploads = () => tooMany('Rate limited: too many uploads at once', RETRY_AFTER_S)
const tooLarge = (maxBytes: number) => badRequest('body', `must not be larger than ${maxBytes} bytes`)

function checkLength(request: IncomingMessage, maxBytes: number): void {
  if (Number(request.headers['content-length'] ?? 0) > maxBytes) throw tooLarge(maxBytes)
}

const byteLength = (chunks: readonly Buffer[]): number => chunks.reduce((sum, chunk) => sum + chunk.length, 0)

/** In memory that can be passed to a thread. */
function join(chunks: readonly Buffer[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(byteLength(chunks))
  let offset = 0
  for (const chunk of chunks) {
    whole.set(chunk, offset)
    offset += chunk.length
  }
  return whole
}
