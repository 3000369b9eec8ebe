/** NDJSON streams: one JSON value per line (docs/api.md#streams). */

/** Every line ends with a newline, including the last. */
export const encodeLine = (value: unknown): string => `${JSON.stringify(value)}\n`

/** Clients accept lines of at least 1 MiB; the lines of the API are far shorter. */
export const NDJSON_LINE_MAX_BYTES = 1024 * 1024

export class NdjsonError extends Error {
  override name = 'NdjsonError'
}

/**
 * Decodes bytes that are split at any position into the values of complete lines. The sender is not trusted: a line that
 * exceeds the limit is an error as soon as it does, before its end arrives.
 *
 * Both methods are lazy generators: the values before an invalid line are yielded first.
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

  /** The newline of the last line is optional. */
  *end(): Generator<unknown, void> {
    yield* this.#take()
  }

  #add(chunk: Uint8Array): void {
    this.#lineBytes += chunk.length
    if (this.#lineBytes > this.#lineMaxBytes) {
      throw new NdjsonError(`a line is longer than ${this.#lineMaxBytes} bytes`)
    }
    this.#line += this.#decoder.decode(chunk, { stream: true })
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

/** The values of a stream, as they arrive. */
export async function* readNdjson(
  stream: AsyncIterable<Uint8Array>,
  lineMaxBytes: number = NDJSON_LINE_MAX_BYTES,
): AsyncGenerator<unknown, void> {
  const decoder = new NdjsonDecoder(lineMaxBytes)
  for await (const bytes of stream) yield* decoder.push(bytes)
  yield* decoder.end()
}
