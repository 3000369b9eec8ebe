/** A guest agent that a test decides over, as far as mounts need it: HTTP/2 on loopback instead of a VM. */
import { once } from 'node:events'
import http2, { type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { addCleanUp, type Scope } from '@warren/kit/testing/clean-up'
import { GUEST_PROTOCOL, type GuestMount, type GuestMountsApplied, type GuestMountsBody } from '@warren/protocol'
import type { GuestChannel } from '../../guest/channel.ts'
import type { MountingVmm } from '../vm-mounts.ts'

export type FakeGuest = {
  vmm: MountingVmm
  /** The sets that it was given. */
  sets: GuestMountsBody['mounts'][]
  /** Answers a set. By default with the reports that it has. With `cut` the answer is not received. */
  onSet: (mounts: GuestMountsBody['mounts']) => unknown
  /** Answers a flush, likewise. */
  onFlush: () => Promise<void> | void
  /** Answers a request for reports. By default with one line. */
  onWatch: (stream: ServerHttp2Stream) => void
  reports: GuestMount[]
  removed: GuestMountsApplied['removed']
}

export async function startFakeGuest(scope: Scope): Promise<FakeGuest> {
  const server = http2.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  session.on('error', () => {}) // The test ends it.
  await once(session, 'connect')
  addCleanUp(scope, () => {
    session.destroy()
    server.close()
  })
  const channel: GuestChannel = {
    session,
    closed: Promise.withResolvers<void>().promise,
    close: () => session.destroy(),
  }
  const guest: FakeGuest = {
    vmm: { record: { agent: { protocol: GUEST_PROTOCOL.CURRENT, version: 'test' } }, channel: async () => channel },
    sets: [],
    onSet: () => {},
    onFlush: () => {},
    onWatch: (stream) => {
      stream.respond({ ':status': 200 })
      stream.write(`${JSON.stringify({ mounts: guest.reports })}\n`)
    },
    reports: [],
    removed: [],
  }
  server.on('stream', async (stream: ServerHttp2Stream, headers) => {
    stream.on('error', () => {}) // The host ends what it no longer needs.
    const to = `${headers[':method']} ${headers[':path']}`
    if (to === 'GET /mounts/watch') return guest.onWatch(stream)
    const body = JSON.parse(Buffer.concat(await Array.fromAsync(stream as AsyncIterable<Buffer>)).toString() || '{}')
    if (to === 'PUT /mounts') {
      guest.sets.push(body.mounts)
      if ((await guest.onSet(body.mounts)) === 'cut') return stream.close(http2.constants.NGHTTP2_CANCEL)
    } else await guest.onFlush()
    if (stream.destroyed) return
    stream.respond({ ':status': 200 })
    stream.end(JSON.stringify({ mounts: guest.reports, removed: guest.removed }))
  })
  return guest
}
