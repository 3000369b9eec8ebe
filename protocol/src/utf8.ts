/** Measuring and truncating text in UTF-8 bytes, the unit of all size limits, without splitting a character. */

const encoder = new TextEncoder()

export function utf8Length(text: string): number {
  let bytes = 0
  for (let i = 0; i < text.length; i++) {
    const unit = text.charCodeAt(i)
    if (unit < 0x80) bytes += 1
    else if (unit < 0x800) bytes += 2
    else if (isSurrogatePairAt(text, i)) {
      bytes += 4
      i += 1
    } else bytes += 3
  }
  return bytes
}

/** The longest prefix of the text that needs at most `maxBytes`. */
export function truncateUtf8(text: string, maxBytes: number): string {
  // A UTF-16 unit needs at most three bytes, so a short text fits without being encoded.
  if (text.length * 3 <= maxBytes) return text
  return text.slice(0, unitsThatFit(text, new Uint8Array(maxBytes)))
}

/**
 * Decodes bytes that are split at any position into strings of at most `maxBytes` UTF-8 bytes. A character is never
 * split: the bytes of an incomplete one wait for the next push. Invalid bytes become U+FFFD.
 */
export class Utf8Chunker {
  // A byte order mark is part of the output of a command.
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true })
  readonly #maxBytes: number
  /** Allocated only for a push that may not fit into one string. */
  #scratch: Uint8Array | undefined

  constructor(maxBytes: number) {
    if (maxBytes < 4) throw new Error(`a chunk of ${maxBytes} bytes cannot hold every character, give at least 4`)
    this.#maxBytes = maxBytes
  }

  push(bytes: Uint8Array): string[] {
    return this.#split(this.#decoder.decode(bytes, { stream: true }))
  }

  /** An incomplete character becomes U+FFFD. */
  end(): string[] {
    return this.#split(this.#decoder.decode())
  }

  #split(text: string): string[] {
    if (text === '') return []
    if (text.length * 3 <= this.#maxBytes) return [text]
    this.#scratch ??= new Uint8Array(this.#maxBytes)
    const chunks: string[] = []
    for (let from = 0; from < text.length; ) {
      // Every unit needs at least one byte.
      const head = text.slice(from, from + this.#maxBytes + 1)
      const units = unitsThatFit(head, this.#scratch)
      chunks.push(head.slice(0, units))
      from += units
    }
    return chunks
  }
}

/** encodeInto stops before the first character that does not fit completely. */
const unitsThatFit = (text: string, space: Uint8Array): number => encoder.encodeInto(text, space).read

function isSurrogatePairAt(text: string, i: number): boolean {
  return (text.codePointAt(i) ?? 0) > 0xffff
}
