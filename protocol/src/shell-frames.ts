/**
 * Frames that a client of the shell sends: one type byte, the payload length in four bytes, big-endian, then the
 * payload. The server sends plain terminal bytes.
 *
 *   0x00  terminal input
 *   0x01  resize: rows, then columns, two bytes each, big-endian
 */

const INPUT = 0x00
const RESIZE = 0x01
const HEADER_BYTES = 5
const RESIZE_BYTES = 4

export const SHELL_PAYLOAD_MAX_BYTES = 1024 * 1024
export const SHELL_ROWS_DEFAULT = 24
export const SHELL_COLS_DEFAULT = 80

export type ShellFrame = { type: 'input'; data: Uint8Array } | { type: 'resize'; rows: number; cols: number }

export function encodeShellFrame(frame: ShellFrame): Uint8Array<ArrayBuffer> {
  const payloadBytes = frame.type === 'input' ? frame.data.length : RESIZE_BYTES
  if (payloadBytes > SHELL_PAYLOAD_MAX_BYTES) throw new ShellFrameError(tooLong(payloadBytes))
  const bytes = new Uint8Array(HEADER_BYTES + payloadBytes)
  const view = new DataView(bytes.buffer)
  view.setUint8(0, frame.type === 'input' ? INPUT : RESIZE)
  view.setUint32(1, payloadBytes)
  if (frame.type === 'input') bytes.set(frame.data, HEADER_BYTES)
  else {
    view.setUint16(HEADER_BYTES, frame.rows)
    view.setUint16(HEADER_BYTES + 2, frame.cols)
  }
  return bytes
}

/** The stream must be closed, because the start of the next frame is unknown. */
export class ShellFrameError extends Error {
  override name = 'ShellFrameError'
}

/**
 * Decodes bytes that are split at any position into complete frames. `push` is a lazy generator: the frames before an
 * invalid one are yielded first.
 */
export class ShellFrameDecoder {
  readonly #header = new Uint8Array(HEADER_BYTES)
  #headerBytes = 0
  /** Allocated when the header is complete, so that small chunks are copied only once. */
  #payload: Uint8Array<ArrayBuffer> | undefined
  #payloadBytes = 0;

  *push(bytes: Uint8Array): Generator<ShellFrame, void> {
    let rest = bytes
    while (rest.length > 0) {
      rest = this.#payload ? this.#fillPayload(this.#payload, rest) : this.#fillHeader(rest)
      if (!this.#payload || this.#payloadBytes < this.#payload.length) continue
      const frame = toFrame(this.#header[0], this.#payload)
      this.#payload = undefined
      this.#headerBytes = 0
      yield frame
    }
  }

  #fillHeader(bytes: Uint8Array): Uint8Array {
    const taken = bytes.subarray(0, HEADER_BYTES - this.#headerBytes)
    this.#header.set(taken, this.#headerBytes)
    this.#headerBytes += taken.length
    const type = this.#header[0]!
    if (type !== INPUT && type !== RESIZE) throw new ShellFrameError(`unknown frame type ${type}`)
    if (this.#headerBytes === HEADER_BYTES) this.#startPayload(type)
    return bytes.subarray(taken.length)
  }

  #startPayload(type: number): void {
    const payloadBytes = new DataView(this.#header.buffer).getUint32(1)
    if (payloadBytes > SHELL_PAYLOAD_MAX_BYTES) throw new ShellFrameError(tooLong(payloadBytes))
    if (type === RESIZE && payloadBytes !== RESIZE_BYTES) {
      throw new ShellFrameError(`a resize has ${RESIZE_BYTES} bytes, not ${payloadBytes}`)
    }
    this.#payload = new Uint8Array(payloadBytes)
    this.#payloadBytes = 0
  }

  #fillPayload(payload: Uint8Array, bytes: Uint8Array): Uint8Array {
    const taken = bytes.subarray(0, payload.length - this.#payloadBytes)
    payload.set(taken, this.#payloadBytes)
    this.#payloadBytes += taken.length
    return bytes.subarray(taken.length)
  }
}

const tooLong = (bytes: number): string => `a payload of ${bytes} bytes is over ${SHELL_PAYLOAD_MAX_BYTES}`

function toFrame(type: number | undefined, payload: Uint8Array<ArrayBuffer>): ShellFrame {
  if (type === INPUT) return { type: 'input', data: payload }
  const view = new DataView(payload.buffer)
  return { type: 'resize', rows: view.getUint16(0), cols: view.getUint16(2) }
}
