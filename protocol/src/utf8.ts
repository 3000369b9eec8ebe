/** Text measured and cut in UTF-8 bytes, the unit of every size limit of the spec; no cut goes through a character. */

const encoder = new TextEncoder()

export function utf8Length(text: string): number {
  let bytes = 0
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit < 0x80) bytes += 1
    else if (unit < 0x800) bytes += 2
    else if (isPairAt(text, i)) {
      bytes += 4
      i += 1
    } else bytes += 3
  }
  return bytes
}

/** The longest beginning of the text that takes at most so many bytes. */
export function truncateUtf8(text: string, maxBytes: number): string {
  // Three bytes a unit is the worst case: what surely fits is not encoded.
  if (text.length * 3 <= maxBytes) return text
  return text.slice(0, unitsThatFit(text, new Uint8Array(maxBytes)))
}

/**
 * Turns bytes, split anywhere, into strings of at most `maxBytes` UTF-8 bytes. A character is never cut: the bytes of
 * an unfinished one wait for the next push. Bytes that are no UTF-8 become U+FFFD.
 */
export class Utf8Chunker {
  // A byte order mark in the output of a command is output.
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  readonly #maxBytes: number
  /** Allocated only for a push that may not fit into one string. */
  #scratch: Uint8Array | undefined

  constructor(maxBytes: number) {
    if (maxBytes < 4) throw new Error(`a chunk of ${maxBytes} bytes cannot hold every character, give at least 4`)
    this.#maxBytes = maxBytes
  }

  push(bytes: Uint8Array): string[] {
    return this.#cut(this.#decoder.decode(bytes, { stream: true }))
  }

  /** What waits for bytes that will not come is U+FFFD. */
  end(): string[] {
    return this.#cut(this.#decoder.decode())
  }

  #cut(text: string): string[] {
    if (text === '') return []
    if (text.length * 3 <= this.#maxBytes) return [text]
    this.#scratch ??= new Uint8Array(this.#maxBytes)
    const chunks: string[] = []
    for (let from = 0; from < text.length; ) {
      // No more units than bytes can fit.
      const head = text.slice(from, from + this.#maxBytes + 1)
      const units = unitsThatFit(head, this.#scratch)
      chunks.push(head.slice(0, units))
      from += units
    }
    return chunks
  }
}

/** encodeInto stops before the first character that does not fit whole. */
const unitsThatFit = (text: string, space: Uint8Array): number => encoder.encodeInto(text, space).read

function isPairAt(text: string, i: number): boolean {
  return (text.codePointAt(i) ?? 0) > 0xffff
}
