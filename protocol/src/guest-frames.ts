/**
 * Frames of exec and process output: 1 byte type, 4 bytes big-endian payload length, payload. guest-exec.ts and
 * guest-processes.ts define the types and the maximum payload.
 */

const HEADER_BYTES = 5

export type GuestFrame<Name extends string> = { type: Name; payload: Uint8Array }

/** The header of a frame whose payload is sent separately. */
export function guestFrameHeader(type: number, payloadBytes: number): Uint8Array {
  const header = new Uint8Array(HEADER_BYTES)
  header[0] = type
  new DataView(header.buffer).setUint32(1, payloadBytes)
  return header
}

export function guestFrame(type: number, payload: Uint8Array): Uint8Array {
  const frame = new Uint8Array(HEADER_BYTES + payload.length)
  frame.set(guestFrameHeader(type, payload.length))
  frame.set(payload, HEADER_BYTES)
  return frame
}

/**
 * Reassembles frames from the chunks of a response. `push` returns the frames that the chunk completes; a payload may be
 * a view into the chunk. `end` throws if the response ends inside a frame.
 */
export function createGuestFrameReader<Name extends string>(
  types: Readonly<Record<Name, number>>,
  payloadMaxBytes: number,
) {
  const names: (Name | undefined)[] = []
  for (const name of Object.keys(types) as Name[]) names[types[name]] = name
  let held: Uint8Array = new Uint8Array()
  return {
    push(chunk: Uint8Array): GuestFrame<Name>[] {
      let rest = held.length === 0 ? chunk : concat(held, chunk)
      const frames: GuestFrame<Name>[] = []
      while (rest.length >= HEADER_BYTES) {
        const payloadBytes = new DataView(rest.buffer, rest.byteOffset).getUint32(1)
        const type = names[rest[0]!] // the length was just checked
        // Checked before the payload arrives, so that a hostile guest cannot make the host buffer it.
        if (type === undefined || payloadBytes > payloadMaxBytes) {
          throw new Error(`the guest sent an invalid frame: type ${rest[0]}, ${payloadBytes} bytes`)
        }
        const end = HEADER_BYTES + payloadBytes
        if (rest.length < end) break
        frames.push({ type, payload: rest.subarray(HEADER_BYTES, end) })
        rest = rest.subarray(end)
      }
      held = rest
      return frames
    },
    end(): void {
      if (held.length > 0) throw new Error('the response of the guest ends inside a frame')
    },
  }
}

function concat(first: Uint8Array, second: Uint8Array): Uint8Array {
  const all = new Uint8Array(first.length + second.length)
  all.set(first)
  all.set(second, first.length)
  return all
}
