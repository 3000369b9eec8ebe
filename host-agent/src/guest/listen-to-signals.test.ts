import assert from 'node:assert/strict'
import { once } from 'node:events'
import http2, { type IncomingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmSignal } from '@warren/protocol'
import type { GuestChannel } from './channel.ts'
import { listenToSignals } from './listen-to-signals.ts'

/** A guest whose stream of signals is written by `send`. `acks` has the ids that were acknowledged. */
async function startGuest(t: TestContext, send: (stream: ServerHttp2Stream) => void) {
  const acks: number[] = []
  const server = http2.createServer()
  server.on('stream', async (stream: ServerHttp2Stream, headers: IncomingHttpHeaders) => {
    stream.on('error', () => {})
    stream.respond({ ':status': 200, 'content-type': 'application/json' })
    if (headers[':path'] === '/signals') return send(stream)
    let text = ''
    for await (const chunk of stream) text += chunk
    acks.push(JSON.parse(text).id)
    stream.end('{}')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  const ended = new AbortController()
  t.after(() => {
    ended.abort()
    session.destroy()
    server.close()
  })
  const channel: GuestChannel = { session, closed: Promise.resolve(), close: () => session.destroy() }
  return { acks, channel, ended: ended.signal }
}

const line = (id: number, signal: HostVmSignal) => `${JSON.stringify({ id, ...signal })}\n`

test('a guest that floods the host with signals causes a write per second at most', async (t) => {
  const writes: HostVmSignal[] = []
  let sent = 0
  const guest = await startGuest(t, (stream) => {
    const timer = setInterval(() => stream.write(line(++sent, { action: 'pause', reason: `${sent}` })), 1)
    stream.once('close', () => clearInterval(timer))
  })

  const startedAt = performance.now()
  void listenToSignals(
    async () => guest.channel,
    async (signal) => void writes.push(signal),
    guest.ended,
  )
  await until(() => writes.length >= 3)
  const seconds = (performance.now() - startedAt) / 1_000

  assert.ok(sent > 100, `${sent} signals were sent`)
  assert.deepEqual(writes[0], { action: 'pause', reason: '1' })
  assert.ok(writes.length <= 1 + seconds, `${writes.length} writes in ${seconds} s`)
})

test('a signal that is recorded already is acknowledged without another write', async (t) => {
  const writes: HostVmSignal[] = []
  const guest = await startGuest(t, (stream) => {
    for (const id of [1, 2]) stream.write(line(id, { action: 'pause', reason: 'done' }))
    stream.write(line(3, { action: 'delete' }))
  })

  void listenToSignals(
    async () => guest.channel,
    async (signal) => void writes.push(signal),
    guest.ended,
  )
  await until(() => guest.acks.length === 3)

  assert.deepEqual(guest.acks, [1, 2, 3])
  assert.deepEqual(writes, [{ action: 'pause', reason: 'done' }, { action: 'delete' }])
})
