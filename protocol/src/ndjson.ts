/** Streams of JSON, one value a line (spec 4.3, 4.4, 4.7). */

/** Compact, and the newline ends every line, the last included (wire 4). */
export const encodeLine = (value: unknown): string => `${JSON.stringify(value)}\n`

/** Clients of this API take lines up to 1 MiB at least; nothing we send comes near. */
export const NDJSON_LINE_MAX_BYTES = 1024 * 1024

export class NdjsonError extends Error {
  override name = 'NdjsonError'
}

/**
 * Takes bytes, split anywhere, and gives the values of whole lines. The other end is not trusted: a line is given up
 * as soon as it grows past the cap, before its end is seen.
 *
 * Both methods are generators and work only while they are read: the values before a broken line come out first.
 */
export class NdjsonDecoder {
  readonly #decoder = new TextDecoder()
  readonly #lineMaxBytes: number
  #line = ''
  #lineBytes = 0

  constructor(lineMaxBytes: number = NDJSON_LINE_MAX_BYTES) {
    this.#lineMaxBytes = lineMaxBytes
  }

  *push(bytes: Uint8Array): Generator<unknown, void> {
    let from = 0
    for (let end = bytes.indexOf(NEWLINE); end !== -1; end = bytes.indexOf(NEWLINE, from)) {
      this.#add(bytes.subarray(from, end))
      from = end + 1
      yield* this.#take()
    }
    this.#add(bytes.subarray(from))
  }

  /** A last line may lack its newline. */
  *end(): Generator<unknown, void> {
    yield* this.#take()
  }

  #add(piece: Uint8Array): void {
    this.#lineBytes += piece.length
    if (this.#lineBytes > this.#lineMaxBytes) {
      throw new NdjsonError(`a line is longer than ${this.#lineMaxBytes} bytes`)
    }
    this.#line += this.#decoder.decode(piece, { stream: true })
  }

  *#take(): Generator<unknown, void> {
    const line = this.#line + this.#decoder.decode()
    this.#line = ''
    this.#lineBytes = 0
    if (line.trim() !== '') yield parseLine(line)
  }
}

const NEWLINE = 0x0a

function parseLine(line: string): unknown {
  try {
    return JSON.parse(line)
  } catch (cause) {
    throw new NdjsonError('a line is not JSON', { cause })
  }
}

/** The values of a whole stream, as they come. */
export async function* readNdjson(
  stream: AsyncIterable<Uint8Array>,
  lineMaxBytes: number = NDJSON_LINE_MAX_BYTES,
): AsyncGenerator<unknown, void> {
  const decoder = new NdjsonDecoder(lineMaxBytes)
  for await (const bytes of stream) yield* decoder.push(bytes)
  yield* decoder.end()
}
