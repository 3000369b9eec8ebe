/**
 * Parses all requests of one HTTP/1 connection, so that every request is checked and not only the first: a later one,
 * pipelined or not, must name the same host. Bytes are forwarded unchanged and in order. Parses untrusted input and has no
 * side effects.
 *
 *   head → (length | chunk-size → chunk → chunk-end → … → trailers)? → head …
 *   head that asks for a WebSocket → upgrade-pending until the server responds, then open (bytes are not parsed) or head
 */
import type { EgressRefusal } from '@warren/protocol'
import { parseRequestHead } from './request-head.ts'

export type Step = { forward: Buffer[]; refusal?: EgressRefusal }

type State =
  | 'head'
  | 'length'
  | 'chunk-size'
  | 'chunk'
  | 'chunk-end'
  | 'trailers'
  | 'upgrade-pending'
  | 'open'
  | 'refused'

const HEAD_MAX_BYTES = 64 * 1024
const LINE_MAX_BYTES = 8 * 1024
const CHUNK_SIZE = /^([0-9a-fA-F]{1,12})(?:[ \t]*;[\t\x20-\x7e\x80-\xff]*)?$/
const TRAILER = /^[!#$%&'*+.^_`|~0-9A-Za-z-]+:[\t\x20-\x7e\x80-\xff]*$/
const CRLF = Buffer.from('\r\n')

export class RequestReader {
  readonly #port: number
  #state: State = 'head'
  #buffer: Buffer = Buffer.alloc(0)
  #remainingBytes = 0
  #host: string | undefined
  #requests = 0

  constructor(port: number) {
    this.#port = port
  }

  /** The host of the first request; undefined until its head is complete. */
  get host(): string | undefined {
    return this.#host
  }

  /** The request asks for a WebSocket, and `settleUpgrade` must be called with the server's decision. */
  get awaitsUpgrade(): boolean {
    return this.#state === 'upgrade-pending'
  }

  push(chunk: Buffer): Step {
    if (this.#state === 'open') return { forward: [chunk] }
    this.#buffer = this.#buffer.length === 0 ? chunk : Buffer.concat([this.#buffer, chunk])
    return this.#advance()
  }

  settleUpgrade(accepted: boolean): Step {
    if (this.#state !== 'upgrade-pending') return { forward: [] }
    this.#state = accepted ? 'open' : 'head'
    return this.#advance()
  }

  #advance(): Step {
    const forward: Buffer[] = []
    for (;;) {
      const taken = this.#next()
      if (taken === undefined) return { forward }
      if (typeof taken === 'string') {
        this.#state = 'refused'
        return { forward, refusal: taken }
      }
      forward.push(taken)
    }
  }

  /** The next bytes to forward, a refusal, or undefined when more input is needed. */
  #next(): Buffer | EgressRefusal | undefined {
    if (this.#buffer.length === 0) return undefined
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
          this.#remainingBytes = Number.parseInt(size[1]!, 16)
          this.#state = this.#remainingBytes === 0 ? 'trailers' : 'chunk'
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
        return this.#take(this.#buffer.length)
      case 'upgrade-pending':
        // A WebSocket client does not send this much before the server responds.
        return this.#buffer.length > LINE_MAX_BYTES ? 'bad_request' : undefined
      case 'refused':
        return undefined
    }
  }

  #head(): Buffer | EgressRefusal | undefined {
    // Some clients send an additional empty line after a body.
    if (this.#requests > 0 && this.#buffer.length >= 2 && this.#buffer.subarray(0, 2).equals(CRLF)) return this.#take(2)
    const end = this.#buffer.indexOf('\r\n\r\n')
    if (end < 0 || end > HEAD_MAX_BYTES) return this.#buffer.length > HEAD_MAX_BYTES ? 'bad_request' : undefined
    const head = parseRequestHead(this.#buffer.toString('latin1', 0, end), this.#port)
    if ('refusal' in head) return head.refusal
    if (this.#host !== undefined && head.host !== this.#host) return 'other_host'
    this.#host = head.host
    this.#requests++
    // Only for the first request: for a later one it is not known which response belongs to it.
    if (head.upgrades && this.#requests === 1) this.#state = 'upgrade-pending'
    else if (head.body.kind === 'chunked') this.#state = 'chunk-size'
    else if (head.body.kind === 'length') {
      this.#state = 'length'
      this.#remainingBytes = head.body.bytes
    }
    return this.#take(end + 4)
  }

  #body(after: State): Buffer {
    const bytes = Math.min(this.#remainingBytes, this.#buffer.length)
    this.#remainingBytes -= bytes
    if (this.#remainingBytes === 0) this.#state = after
    return this.#take(bytes)
  }

  #line(accept: (line: string) => boolean): Buffer | EgressRefusal | undefined {
    const end = this.#buffer.indexOf(CRLF)
    if (end < 0 || end > LINE_MAX_BYTES) return this.#buffer.length > LINE_MAX_BYTES ? 'bad_request' : undefined
    if (!accept(this.#buffer.toString('latin1', 0, end))) return 'bad_request'
    return this.#take(end + 2)
  }

  #take(bytes: number): Buffer {
    const taken = this.#buffer.subarray(0, bytes)
    this.#buffer = this.#buffer.subarray(bytes)
    return taken
  }
}
