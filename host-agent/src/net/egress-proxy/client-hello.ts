/**
 * Which host a TLS connection asks for (RFC 8446 4.1.2, RFC 6066 3): the first message of the client, gathered from
 * however many records and segments it comes in. Whatever is not exactly a ClientHello with one server name is refused:
 * what we cannot read, we cannot judge. Pure, and fed by strangers.
 *
 * An encrypted ClientHello has an outer name, which is judged like any other; without one there is no name and no way.
 */
import type { EgressRefusal } from '@warren/protocol'
import { normaliseHostName } from './host-name.ts'

export type HelloOutcome = { name: string } | { refusal: EgressRefusal }

const RECORD_HEADER_BYTES = 5
const RECORD_MAX_BYTES = 2 ** 14
const HANDSHAKE = 22
const CLIENT_HELLO = 1
const MESSAGE_HEADER_BYTES = 4
/** With the keys of every group and a ticket a hello has some 4 KiB. */
const MESSAGE_MAX_BYTES = 32 * 1024
const SERVER_NAME = 0
const HOST_NAME = 0

const BAD: HelloOutcome = { refusal: 'bad_request' }

export class ClientHelloReader {
  #rest: Buffer = Buffer.alloc(0)
  #message: Buffer = Buffer.alloc(0)

  /** undefined: not all of it is there yet. */
  push(chunk: Buffer): HelloOutcome | undefined {
    this.#rest = this.#rest.length === 0 ? chunk : Buffer.concat([this.#rest, chunk])
    for (;;) {
      const record = this.#takeRecord()
      if (record === 'bad') return BAD
      if (record === undefined) return undefined
      this.#message = Buffer.concat([this.#message, record])
      const outcome = this.#judge()
      if (outcome !== undefined) return outcome
    }
  }

  #takeRecord(): Buffer | 'bad' | undefined {
    const [type, major] = this.#rest
    if ((type !== undefined && type !== HANDSHAKE) || (major !== undefined && major !== 3)) return 'bad'
    if (this.#rest.length < RECORD_HEADER_BYTES) return undefined
    const length = this.#rest.readUInt16BE(3)
    // An empty one is forbidden for handshakes; many of them would keep us reading for nothing.
    if (length === 0 || length > RECORD_MAX_BYTES) return 'bad'
    const end = RECORD_HEADER_BYTES + length
    if (this.#rest.length < end) return undefined
    const record = this.#rest.subarray(RECORD_HEADER_BYTES, end)
    this.#rest = this.#rest.subarray(end)
    return record
  }

  #judge(): HelloOutcome | undefined {
    const message = this.#message
    if (message[0] !== CLIENT_HELLO) return BAD
    if (message.length < MESSAGE_HEADER_BYTES) return undefined
    const length = message.readUIntBE(1, 3)
    if (length > MESSAGE_MAX_BYTES) return BAD
    const end = MESSAGE_HEADER_BYTES + length
    if (message.length < end) return undefined
    // A client has nothing more to say before the server has answered.
    if (message.length > end) return BAD
    return readServerName(new Reader(message.subarray(MESSAGE_HEADER_BYTES)))
  }
}

function readServerName(hello: Reader): HelloOutcome {
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

/** The list may have names of other kinds by its form; none was ever defined. */
function readNameList(extension: Reader): HelloOutcome {
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

  /** Bytes after their length, which has `lengthBytes`. */
  takeVector(lengthBytes: number): Buffer {
    return this.take(this.take(lengthBytes).readUIntBE(0, lengthBytes))
  }
}
