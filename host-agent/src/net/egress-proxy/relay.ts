/**
 * Relays bytes between a guest and a server in both directions, at the speed of the slower side. When one side closes, so
 * does the other.
 */
import type { Socket } from 'node:net'
import type { EgressRefusal } from '@warren/protocol'
import type { RequestReader } from './request-reader.ts'

/** The length of `HTTP/1.1 101` and the character after it. */
const STATUS_BYTES = 13

export function relay(guest: Socket, server: Socket): void {
  closeTogether(guest, server)
  guest.pipe(server)
  server.pipe(guest)
}

/** Like `relay`, but checks every HTTP request on its way to the server. */
export function relayRequests(
  guest: Socket,
  server: Socket,
  requests: RequestReader,
  onRefused: (refusal: EgressRefusal) => void,
): void {
  closeTogether(guest, server)
  const forward = ({ forward, refusal }: ReturnType<RequestReader['push']>) => {
    let isFull = false
    for (const bytes of forward) isFull = !server.write(bytes) || isFull
    if (refusal !== undefined) return onRefused(refusal)
    if (isFull) guest.pause()
  }
  guest.on('data', (chunk: Buffer) => forward(requests.push(chunk)))
  guest.once('end', () => server.end())
  server.on('drain', () => guest.resume())
  if (requests.awaitsUpgrade) {
    onStatusLine(server, (status) => forward(requests.settleUpgrade(/^HTTP\/1\.1 101[ \r]/.test(status))))
  }
  server.pipe(guest)
  guest.resume()
}

/** Calls back once with the first bytes of the response. */
function onStatusLine(server: Socket, callback: (status: string) => void): void {
  let response: Buffer = Buffer.alloc(0)
  const onData = (chunk: Buffer) => {
    response = Buffer.concat([response, chunk])
    if (response.length < STATUS_BYTES) return
    server.off('data', onData)
    callback(response.toString('latin1', 0, STATUS_BYTES))
  }
  server.on('data', onData)
}

function closeTogether(guest: Socket, server: Socket): void {
  server.on('error', () => {}) // The close event follows.
  guest.once('close', (failed) => (failed ? server.resetAndDestroy() : server.destroySoon()))
  // After a regular end the guest still receives what is on its way.
  server.once('close', (failed) => (failed ? guest.resetAndDestroy() : guest.destroySoon()))
}
