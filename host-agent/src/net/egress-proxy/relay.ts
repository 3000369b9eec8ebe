/** Bytes from one end to the other and back, as fast as the slower one takes them. Either end closing closes both. */
import type { Socket } from 'node:net'
import type { EgressRefusal } from '@warren/protocol'
import type { RequestReader } from './request-reader.ts'

export function carry(guest: Socket, server: Socket): void {
  tie(guest, server)
  guest.pipe(server)
  server.pipe(guest)
}

/** As above, but each request is looked at on its way. */
export function carryRequests(
  guest: Socket,
  server: Socket,
  requests: RequestReader,
  onRefused: (refusal: EgressRefusal) => void,
): void {
  tie(guest, server)
  const pass = ({ forward, refusal }: ReturnType<RequestReader['push']>) => {
    let isFull = false
    for (const bytes of forward) isFull = !server.write(bytes) || isFull
    if (refusal !== undefined) return onRefused(refusal)
    if (isFull) guest.pause()
  }
  guest.on('data', (chunk: Buffer) => pass(requests.push(chunk)))
  guest.once('end', () => server.end())
  server.on('drain', () => guest.resume())
  if (requests.isHeld) {
    let answer: Buffer = Buffer.alloc(0)
    const look = (chunk: Buffer) => {
      answer = Buffer.concat([answer, chunk])
      if (answer.length < STATUS_BYTES) return
      server.off('data', look)
      pass(requests.settleUpgrade(/^HTTP\/1\.1 101[ \r]/.test(answer.toString('latin1', 0, STATUS_BYTES))))
    }
    server.on('data', look)
  }
  server.pipe(guest)
  guest.resume()
}

/** `HTTP/1.1 101` and what follows it. */
const STATUS_BYTES = 13

function tie(guest: Socket, server: Socket): void {
  server.on('error', () => {}) // its close follows
  guest.once('close', (failed) => (failed ? server.resetAndDestroy() : server.destroySoon()))
  // After a proper end the guest still gets what is on its way.
  server.once('close', (failed) => (failed ? guest.resetAndDestroy() : guest.destroySoon()))
}
