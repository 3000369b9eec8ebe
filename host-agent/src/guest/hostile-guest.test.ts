/**
 * A guest that greets as it should and then sends whatever it likes. The worst that may come of it is that its own
 * channel ends: the host agent lives on, holds no more than the windows allow, and still serves others.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import net from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { guestHelloAnswer } from '@warren/protocol'
import { type GuestChannel, openGuestChannel } from './channel.ts'
import { askGuest } from './client.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-hostile-'))
after(() => rm(folder, { recursive: true, force: true }))

const FRAME = {
  data: 0,
  headers: 1,
  priority: 2,
  reset: 3,
  settings: 4,
  promise: 5,
  ping: 6,
  goaway: 7,
  window: 8,
  more: 9,
  altsvc: 10,
  origin: 12,
}
const ANSWER_LIMIT_MS = 1_500
const MIB = 1024 * 1024
const ATTACK_BYTES = 48 * MIB
/** The windows of one stream, Node's own buffers and garbage. */
const GROWTH_MAX_MIB = 96

function frame(type: number, flags: number, stream: number, payload: Uint8Array = Buffer.alloc(0)): Buffer {
  const head = Buffer.alloc(9)
  head.writeUIntBE(payload.length, 0, 3)
  head.writeUInt8(type, 3)
  head.writeUInt8(flags, 4)
  head.writeUInt32BE(stream, 5)
  return Buffer.concat([head, payload])
}

const thousand = (one: Buffer) => Buffer.concat(Array.from({ length: 1000 }, () => one))

/** `:status: 200` of the static table, then whatever. */
const answerHead = (flags: number, more: Uint8Array = Buffer.alloc(0)) =>
  frame(FRAME.headers, flags, 1, Buffer.concat([Buffer.from([0x88]), more]))
const literal = (name: string, value: string) =>
  Buffer.concat([Buffer.from([0, name.length]), Buffer.from(name), Buffer.from([value.length]), Buffer.from(value)])
const number = (value: number) => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}
const noise = Buffer.from(Array.from({ length: 65_536 }, (_, at) => (at * 7919 + (at >> 3) * 31) & 0xff))

type Attack = { first?: Buffer; again: Buffer; goesOn?: true }

/** What it sends again and again once it was asked something. Most of it ends the session at once. */
const ATTACKS: Record<string, Attack> = {
  noise: { again: noise },
  'pings without end': {
    again: thousand(frame(FRAME.ping, 0, 0, Buffer.alloc(8))),
  },
  'settings without end': {
    again: Buffer.concat(
      Array.from({ length: 1000 }, () => frame(FRAME.settings, 0, 0, Buffer.from([0, 3, 0, 0, 0, 1]))),
    ),
  },
  'a header that never ends': {
    first: answerHead(0),
    again: frame(FRAME.more, 0, 1, literal('x'.repeat(60), 'y'.repeat(60))),
  },
  'answers before the answer': {
    again: thousand(frame(FRAME.headers, 4, 1, Buffer.from([0x08, 3, 0x31, 0x30, 0x33]))),
  },
  'an answer that never ends': {
    goesOn: true,
    first: answerHead(4),
    again: frame(FRAME.data, 0, 1, Buffer.alloc(16_384, 0x20)),
  },
  'empty data without end': {
    first: answerHead(4),
    again: thousand(frame(FRAME.data, 0, 1)),
  },
  'data of a stream that nobody opened': { again: frame(FRAME.data, 0, 99, Buffer.alloc(16_384)) },
  promises: { again: frame(FRAME.promise, 4, 1, Buffer.concat([number(2), Buffer.from([0x82])])) },
  'a window beyond all windows': { again: frame(FRAME.window, 0, 1, number(2 ** 31 - 1)) },
  'goodbye without end': { again: thousand(frame(FRAME.goaway, 0, 0, Buffer.concat([number(1), number(0)]))) },
  'other services without end': { again: thousand(frame(FRAME.altsvc, 0, 0, Buffer.from('\0\x01ah2=":1"'))) },
  'other origins without end': {
    goesOn: true,
    again: thousand(frame(FRAME.origin, 0, 0, Buffer.from('\0\x08http://a'))),
  },
  'priorities without end': { again: thousand(frame(FRAME.priority, 0, 1, Buffer.alloc(5))) },
  'windows that grow by one': { goesOn: true, again: thousand(frame(FRAME.window, 0, 0, number(1))) },
  'resets without end': { goesOn: true, again: thousand(frame(FRAME.reset, 0, 1, number(8))) },
  'a frame larger than agreed': { again: frame(FRAME.data, 0, 1, Buffer.alloc(1_000_000)) },
  'unknown kinds of frames': {
    again: Buffer.concat(Array.from({ length: 100 }, () => frame(0x42, 0xff, 1, noise.subarray(0, 500)))),
  },
}

/** Greets, and when it is asked something attacks. */
async function startGuest(name: string, attack?: Attack) {
  const paths = { agent: path.join(folder, name), hello: path.join(folder, `${name}.hello`) }
  let sent = 0
  const greet = (socket: net.Socket, then: () => void) => {
    socket.on('error', () => {})
    socket.once('data', (line: Buffer) => {
      const nonce = /[0-9a-f]{32}/.exec(line.toString('latin1'))![0]
      socket.write(guestHelloAnswer(nonce))
      then()
    })
  }
  const hello = net.createServer((socket) => greet(socket, () => socket.resume()))
  const agent = net.createServer((socket) =>
    greet(socket, () => {
      socket.write(frame(FRAME.settings, 0, 0))
      socket.resume()
      if (!attack) return
      // The request has come once there is more than the preface and the settings.
      socket.once('data', () => setImmediate(() => pump(socket, attack)))
    }),
  )
  function pump(socket: net.Socket, { first, again }: Attack) {
    if (first) socket.write(first)
    const go = () => {
      while (!socket.destroyed && sent < ATTACK_BYTES) {
        sent += again.length
        if (!socket.write(again)) return void socket.once('drain', go)
      }
    }
    go()
  }
  agent.listen(paths.agent)
  hello.listen(paths.hello)
  await Promise.all([once(agent, 'listening'), once(hello, 'listening')])
  after(() => {
    agent.close()
    hello.close()
  })
  return { paths, sent: () => sent }
}

for (const [name, attack] of Object.entries(ATTACKS)) {
  test(`${name}: nothing comes of it but the end of its own channel`, async (t) => {
    const { paths, sent } = await startGuest(name.replaceAll(/\W/g, '-').slice(0, 20), attack)
    const channel: GuestChannel = await openGuestChannel(paths, AbortSignal.timeout(10_000))
    const before = process.memoryUsage().rss

    const asked = askGuest(
      channel.session,
      { method: 'GET', path: '/ready', answer: { type: 'object' } },
      AbortSignal.timeout(ANSWER_LIMIT_MS),
    )
    await assert.rejects(asked)

    const grownMib = (process.memoryUsage().rss - before) / MIB
    t.diagnostic(
      `${Math.round(sent() / MIB)} MiB were sent, ${Math.round(grownMib)} MiB grown, ${channel.session.destroyed ? 'ended' : 'open'}`,
    )
    assert.equal(channel.session.destroyed, !attack.goesOn)
    assert.ok(grownMib < GROWTH_MAX_MIB, `grew by ${grownMib} MiB`)
    channel.close()
    await channel.closed
  })
}
