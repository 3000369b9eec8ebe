/**
 * Follows the requests on one HTTP/1 connection, so that each is judged and not only the first: a second one, sent
 * ahead or after the first, must name the same host. Bytes pass unchanged and in order; pure, and fed by strangers.
 *
 *   head → (length | chunk-size → chunk → chunk-end → … → trailers)? → head …
 *   head that asks for a WebSocket → held until the server's word: open (bytes pass unread) or head
 */
import type { EgressRefusal } from '@warren/protocol'
import { parseRequestHead } from './request-head.ts'

export type Step = { forward: Buffer[]; refusal?: EgressRefusal }

type State = 'head' | 'length' | 'chunk-size' | 'chunk' | 'chunk-end' | 'trailers' | 'held' | 'open' | 'refused'

const HEAD_MAX_BYTES = 64 * 1024
const LINE_MAX_BYTES = 8 * 1024
const CHUNK_SIZE = /^([0-9a-fA-F]{1,12})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?$/
const TRAILER = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*$/
const CRLF = Buffer.from('\r\n')

export class RequestReader {
  readonly #port: number
  #state: State = 'head'
  #rest: Buffer = Buffer.alloc(0)
  #left = 0
  #host: string | undefined
  #requests = 0

  constructor(port: number) {
    this.#port = port
  }

  /** What the first request asks for, as soon as its head is whole. */
  get host(): string | undefined {
    return this.#host
  }

  /** The last request asks for another protocol: `settleUpgrade` says what the server answered. */
  get isHeld(): boolean {
    return this.#state === 'held'
  }

  push(chunk: Buffer): Step {
    if (this.#state === 'open') return { forward: [chunk] }
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    return this.#go()
  }

  settleUpgrade(accepted: boolean): Step {
    if (this.#state !== 'held') return { forward: [] }
    this.#state = accepted ? 'open' : 'head'
    return this.#go()
  }

  #go(): Step {
    const forward: Buffer[] = []
    for (;;) {
      const taken = this.#step()
      if (taken === undefined) return { forward }
      if (typeof taken === 'string') {
        this.#state = 'refused'
        return { forward, refusal: taken }
      }
      forward.push(taken)
    }
  }

  /** The next bytes to pass on, a refusal, or undefined when more must come first. */
  #step(): Buffer | EgressRefusal | undefined {
    if (this.#rest.length === 0) return undefined
    switch (this.#state) {
      case 'head':
        return this.#head()
      case 'length':
        return this.#body('head')
      case 'chunk':
        return this.#body('chunk-end')
      case 'chunk-size':
        return this.#line((line) => {
          const size = CHUNK_SIZE.exec(line)
          if (size === null) return false
          this.#left = Number.parseInt(size[1]!, 16)
          this.#state = this.#left === 0 ? 'trailers' : 'chunk'
          return true
        })
      case 'chunk-end':
        return this.#line((line) => {
          this.#state = 'chunk-size'
          return line === ''
        })
      case 'trailers':
        return this.#line((line) => {
          if (line === '') this.#state = 'head'
          return line === '' || TRAILER.test(line)
        })
      case 'open':
        return this.#take(this.#rest.length)
      case 'held':
        // More than this before the server's word is no WebSocket.
        return this.#rest.length > LINE_MAX_BYTES ? 'bad_request' : undefined
      case 'refused':
        return undefined
    }
  }

  #head(): Buffer | EgressRefusal | undefined {
    // Some clients end a body with an empty line that belongs to nothing.
    if (this.#requests > 0 && this.#rest.length >= 2 && this.#rest.subarray(0, 2).equals(CRLF)) return this.#take(2)
    const end = this.#rest.indexOf('\r\n\r\n')
    if (end < 0 || end > HEAD_MAX_BYTES) return this.#rest.length > HEAD_MAX_BYTES ? 'bad_request' : undefined
    const head = parseRequestHead(this.#rest.toString('latin1', 0, end), this.#port)
    if ('refusal' in head) return head.refusal
    if (this.#host !== undefined && head.host !== this.#host) return 'other_host'
    this.#host = head.host
    this.#requests++
    // Only a first request: of a later one we could not tell which answer is its own.
    if (head.upgrades && this.#requests === 1) this.#state = 'held'
    else if (head.body.kind === 'chunked') this.#state = 'chunk-size'
    else if (head.body.kind === 'length') {
      this.#state = 'length'
      this.#left = head.body.bytes
    }
    return this.#take(end + 4)
  }

  #body(after: State): Buffer {
    const bytes = Math.min(this.#left, this.#rest.length)
    this.#left -= bytes
    if (this.#left === 0) this.#state = after
    return this.#take(bytes)
  }

  #line(accept: (line: string) => boolean): Buffer | EgressRefusal | undefined {
    const end = this.#rest.indexOf(CRLF)
    if (end < 0 || end > LINE_MAX_BYTES) return this.#rest.length > LINE_MAX_BYTES ? 'bad_request' : undefined
    if (!accept(this.#rest.toString('latin1', 0, end))) return 'bad_request'
    return this.#take(end + 2)
  }

  #take(bytes: number): Buffer {
    const taken = this.#rest.subarray(0, bytes)
    this.#rest = this.#rest.subarray(bytes)
    return taken
  }
}
