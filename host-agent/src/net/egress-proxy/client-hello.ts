/**
 * Reads the server name from the first message of a TLS client (RFC 8446 §4.1.2, RFC 6066 §3), which may arrive in any
 * number of records and segments. Anything but a ClientHello with exactly one server name is refused, because a name that
 * cannot be read cannot be checked. Parses untrusted input and has no side effects.
 *
 * An encrypted ClientHello has an outer name, which is checked like any other. One without an outer name is refused.
 */
import type { EgressRefusal } from '@warren/protocol'
import { normaliseHostName } from './host-name.ts'

export type ClientHelloOutcome = { name: string } | { refusal: EgressRefusal }

const RECORD_HEADER_BYTES = 5
const RECORD_MAX_BYTES = 2 ** 14
const HANDSHAKE = 22
const CLIENT_HELLO = 1
const MESSAGE_HEADER_BYTES = 4
/** A ClientHello with keys of every group and a session ticket has about 4 KiB. */
const MESSAGE_MAX_BYTES = 32 * 1024
const SERVER_NAME = 0
const HOST_NAME = 0

const BAD: ClientHelloOutcome = { refusal: 'bad_request' }

export class ClientHelloReader {
  #rest: Buffer = Buffer.alloc(0)
  #message: Buffer = Buffer.alloc(0)

  /** Undefined: the message is not complete yet. */
  push(chunk: Buffer): ClientHelloOutcome | undefined {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    for (;;) {
      const record = this.#takeRecord()
      if (record === 'bad') return BAD
      if (record === undefined) return undefined
      this.#message = Buffer.concat([this.#message, record])
      const outcome = this.#parse()
      if (outcome !== undefined) return outcome
    }
  }

  #takeRecord(): Buffer | 'bad' | undefined {
    const [type, major] = this.#rest
    if ((type !== undefined && type !== HANDSHAKE) || (major !== undefined && major !== 3)) return 'bad'
    if (this.#rest.length < RECORD_HEADER_BYTES) return undefined
    const length = this.#rest.readUInt16BE(3)
    // Empty handshake records are forbidden, and a client could send them forever.
    if (length === 0 || length > RECORD_MAX_BYTES) return 'bad'
    const end = RECORD_HEADER_BYTES + length
    if (this.#rest.length < end) return undefined
    const record = this.#rest.subarray(RECORD_HEADER_BYTES, end)
    this.#rest = this.#rest.subarray(end)
    return record
  }

  #parse(): ClientHelloOutcome | undefined {
    const message = this.#message
    if (message[0] !== CLIENT_HELLO) return BAD
    if (message.length < MESSAGE_HEADER_BYTES) return undefined
    const length = message.readUIntBE(1, 3)
    if (length > MESSAGE_MAX_BYTES) return BAD
    const end = MESSAGE_HEADER_BYTES + length
    if (message.length < end) return undefined
    // A client sends nothing more before the server has answered.
    if (message.length > end) return BAD
    return readServerName(new Reader(message.subarray(MESSAGE_HEADER_BYTES)))
  }
}

function readServerName(hello: Reader): ClientHelloOutcome {
  try {
    hello.take(2 + 32) // version, random
    hello.takeVector(1) // session
    hello.takeVector(2) // cipher suites
    hello.takeVector(1) // compression
    if (hello.isEmpty) return { refusal: 'no_server_name' }
    const extensions = new Reader(hello.takeVector(2))
    if (!hello.isEmpty) return BAD
    let found: Buffer | undefined
    while (!extensions.isEmpty) {
      const type = extensions.take(2).readUInt16BE(0)
      const body = extensions.takeVector(2)
      if (type !== SERVER_NAME) continue
      if (found !== undefined) return BAD
      found = body
    }
    return found === undefined ? { refusal: 'no_server_name' } : readNameList(new Reader(found))
  } catch (error) {
    if (error instanceof TooShortError) return BAD
    throw error
  }
}

/** The format allows names of other kinds, but none was ever defined. */
function readNameList(extension: Reader): ClientHelloOutcome {
  const list = new Reader(extension.takeVector(2))
  const kind = list.take(1)[0]
  const text = list.takeVector(2).toString('latin1')
  if (!extension.isEmpty || !list.isEmpty || kind !== HOST_NAME) return BAD
  const name = normaliseHostName(text)
  return name === undefined ? BAD : { name }
}

class TooShortError extends Error {}

class Reader {
  readonly #bytes: Buffer
  #at = 0

  constructor(bytes: Buffer) {
    this.#bytes = bytes
  }

  get isEmpty(): boolean {
    return this.#at === this.#bytes.length
  }

  take(count: number): Buffer {
    if (this.#at + count > this.#bytes.length) throw new TooShortError()
    this.#at += count
    return this.#bytes.subarray(this.#at - count, this.#at)
  }

  /** Takes a length of `lengthBytes` and then as many bytes. */
  takeVector(lengthBytes: number): Buffer {
    return this.take(this.take(lengthBytes).readUIntBE(0, lengthBytes))
  }
}
