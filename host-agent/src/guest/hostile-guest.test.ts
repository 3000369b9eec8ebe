/**
 * A guest that answers the hello correctly and then sends invalid or endless frames. It may lose its own channel, but the host
 * agent keeps running, buffers no more than the windows allow, and still serves other guests.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { guestHelloReply } from '@warren/protocol'
import { callGuest } from './call-guest.ts'
import { type GuestChannel, openGuestChannel } from './channel.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-hostile-'))
after(() => rm(folder, { recursive: true, force: true }))

const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  pushPromise: 5,
  ping: 6,
  goaway: 7,
  windowUpdate: 8,
  continuation: 9,
  altsvc: 10,
  origin: 12,
}
const RESPONSE_LIMIT_MS = 1_500
const MIB = 1024 * 1024
const ATTACK_BYTES = 48 * MIB
/** The windows of one stream, Node's buffers and garbage. */
const GROWTH_MAX_MIB = 96

function frame(type: number, flags: number, stream: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head.writeUInt8(type, 3)
  head.writeUInt8(flags, 4)
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, payload])
}

const thousandOf = (one: Buffer) => Buffer.concat(Array.from({ length: 1000 }, () => one))

/** `:status: 200` from the static table, then further header bytes. */
const responseHead = (flags: number, more: Uint8Array = Buffer.alloc(0)) =>
  frame(FRAME.headers, flags, 1, Buffer.concat([Buffer.from([0x88]), more]))
const literal = (name: string, value: string) =>
  Buffer.concat([Buffer.from([0, name.length]), Buffer.from(name), Buffer.from([value.length]), Buffer.from(value)])
const number = (value: number) => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}
const noise = Buffer.from(Array.from({ length: 65_536 }, (_, at) => (at * 7919 + (at >> 3) * 31) & 0xff))

type Attack = { first?: Buffer; repeated: Buffer; keepsSession?: true }

/** What the guest sends repeatedly after a request. Most of it ends the session at once. */
const ATTACKS: Record<string, Attack> = {
  'random bytes': { repeated: noise },
  'endless pings': {
    repeated: thousandOf(frame(FRAME.ping, 0, 0, Buffer.alloc(8))),
  },
  'endless settings': {
    repeated: Buffer.concat(
      Array.from({ length: 1000 }, () => frame(FRAME.settings, 0, 0, Buffer.from([0, 3, 0, 0, 0, 1]))),
    ),
  },
  'a header that never ends': {
    first: responseHead(0),
    repeated: frame(FRAME.continuation, 0, 1, literal('x'.repeat(60), 'y'.repeat(60))),
  },
  'endless informational responses': {
    repeated: thousandOf(frame(FRAME.headers, 4, 1, Buffer.from([0x08, 3, 0x31, 0x30, 0x33]))),
  },
  'an endless response': {
    keepsSession: true,
    first: responseHead(4),
    repeated: frame(FRAME.data, 0, 1, Buffer.alloc(16_384, 0x20)),
  },
  'endless empty data frames': {
    first: responseHead(4),
    repeated: thousandOf(frame(FRAME.data, 0, 1)),
  },
  'data for a stream that is not open': { repeated: frame(FRAME.data, 0, 99, Buffer.alloc(16_384)) },
  'push promises': { repeated: frame(FRAME.pushPromise, 4, 1, Buffer.concat([number(2), Buffer.from([0x82])])) },
  'a window that overflows': { repeated: frame(FRAME.windowUpdate, 0, 1, number(2 ** 31 - 1)) },
  'endless goaway frames': { repeated: thousandOf(frame(FRAME.goaway, 0, 0, Buffer.concat([number(1), number(0)]))) },
  'endless alternative services': { repeated: thousandOf(frame(FRAME.altsvc, 0, 0, Buffer.from('\0\x01ah2=":1"'))) },
  'endless origins': {
    keepsSession: true,
    repeated: thousandOf(frame(FRAME.origin, 0, 0, Buffer.from('\0\x08http://a'))),
  },
  'endless priorities': { repeated: thousandOf(frame(FRAME.priority, 0, 1, Buffer.alloc(5))) },
  'endless window updates of one byte': {
    keepsSession: true,
    repeated: thousandOf(frame(FRAME.windowUpdate, 0, 0, number(1))),
  },
  'endless resets': { keepsSession: true, repeated: thousandOf(frame(FRAME.reset, 0, 1, number(8))) },
  'a frame above the maximum size': { repeated: frame(FRAME.data, 0, 1, Buffer.alloc(1_000_000)) },
  'unknown frame types': {
    repeated: Buffer.concat(Array.from({ length: 100 }, () => frame(0x42, 0xff, 1, noise.subarray(0, 500)))),
  },
}

/** Answers the hello, and attacks after the first request. */
async function startGuest(name: string, attack?: Attack) {
  const paths = { agent: path.join(folder, name), hello: path.join(folder, `${name}.hello`) }
  let total = 0
  const answerHello = (socket: net.Socket, then: () => void) => {
    socket.on('error', () => {})
    socket.once('data', (line: Buffer) => {
      const nonce = /[0-9a-f]{32}/.exec(line.toString('latin1'))![0]
      socket.write(guestHelloReply(nonce))
      then()
    })
  }
  const hello = net.createServer((socket) => answerHello(socket, () => socket.resume()))
  const agent = net.createServer((socket) =>
    answerHello(socket, () => {
      socket.write(frame(FRAME.settings, 0, 0))
      socket.resume()
      if (!attack) return
      // The next data is the HTTP/2 preface together with the request.
      socket.once('data', () => setImmediate(() => pump(socket, attack)))
    }),
  )
  function pump(socket: net.Socket, { first, repeated }: Attack) {
    if (first) socket.write(first)
    let sent = 0
    const send = () => {
      while (!socket.destroyed && sent < ATTACK_BYTES) {
        sent += repeated.length
        total += repeated.length
        if (!socket.write(repeated)) return void socket.once('drain', send)
      }
    }
    send()
  }
  agent.listen(paths.agent)
  hello.listen(paths.hello)
  await Promise.all([once(agent, 'listening'), once(hello, 'listening')])
  after(() => {
    agent.close()
    hello.close()
  })
  return { paths, sent: () => total }
}

for (const [name, attack] of Object.entries(ATTACKS)) {
  test(`${name}: at most the channel of this guest ends`, async (t) => {
    const { paths, sent } = await startGuest(name.replaceAll(/\W/g, '-').slice(0, 20), attack)
    const channel: GuestChannel = await openGuestChannel(paths, AbortSignal.timeout(10_000))
    const before = process.memoryUsage().rss

    await assert.rejects(askReady(channel))

    const grownMib = (process.memoryUsage().rss - before) / MIB
    t.diagnostic(
      `${Math.round(sent() / MIB)} MiB sent, memory grew by ${Math.round(grownMib)} MiB, session ${channel.session.destroyed ? 'ended' : 'open'}`,
    )
    assert.equal(channel.session.destroyed, !attack.keepsSession)
    assert.ok(grownMib < GROWTH_MAX_MIB, `memory grew by ${grownMib} MiB`)
    channel.close()
    await channel.closed
  })
}

/** Whether the process ends depends on which objects are collected first. Without the protection some hundred are enough. */
test('headers that never end, on a thousand channels, do not end the process', async () => {
  const { paths } = await startGuest('many', ATTACKS['a header that never ends'])

  for (let i = 0; i < 1000; i++) {
    const channel = await openGuestChannel(paths, AbortSignal.timeout(10_000))
    await assert.rejects(askReady(channel))
    channel.close()
    await channel.closed
  }
})

const askReady = ({ session }: GuestChannel) =>
  callGuest(
    session,
    { method: 'GET', path: '/ready', response: { type: 'object' } },
    AbortSignal.timeout(RESPONSE_LIMIT_MS),
  )

test('a channel that is closed as soon as it is open does not end the process', async () => {
  const { paths } = await startGuest('closed-at-once')

  const channel = await openGuestChannel(paths, AbortSignal.timeout(10_000))
  channel.close()
  await channel.closed
  await nextTurn() // The event that the session is connected may come only now.

  assert.ok(channel.session.destroyed)
})
