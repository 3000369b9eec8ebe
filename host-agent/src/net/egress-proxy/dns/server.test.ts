import assert from 'node:assert/strict'
import { createSocket, type RemoteInfo, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { type TestContext, test } from 'node:test'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { parseResolvConf } from '../../resolv-conf.ts'
import { SourceLimiter } from '../source-limiter.ts'
import { SourceRate } from '../source-rate.ts'
import { isResponseTo, parseQuery, RCODE, renderEmptyResponse, withId } from './message.ts'
import { type DnsServer, startDns } from './server.ts'
import { readFrames, renderFrame } from './tcp-frames.ts'

const QUERY = Buffer.from('123401000001000000000000076578616d706c6503434f4d0000010001', 'hex')
const log = { warn: () => {} }

test('a query is parsed, and anything else is not a query', () => {
  assert.deepEqual(parseQuery(QUERY), { id: 0x1234, name: 'example.com', type: 1, class: 1, head: QUERY })
  assert.equal(parseQuery(renderEmptyResponse(parseQuery(QUERY)!, RCODE.SERVFAIL)), undefined)
  for (let length = 0; length < QUERY.length; length++) assert.equal(parseQuery(QUERY.subarray(0, length)), undefined)
  const pointer = Buffer.from(QUERY)
  pointer.writeUInt8(0xc0, 12)
  assert.equal(parseQuery(pointer), undefined)
  const dotted = Buffer.from(QUERY)
  dotted.write('ex.mple', 13)
  assert.equal(parseQuery(dotted)?.name, 'ex\\.mple.com')
})

test('only a response to the same query is accepted', () => {
  const query = parseQuery(QUERY)!
  const answer = renderEmptyResponse(query, RCODE.SERVFAIL)

  assert.equal(answer.toString('hex'), `1234818200010000${'00000000'}${QUERY.toString('hex', 12)}`)
  assert.equal(isResponseTo(answer, QUERY, query), true)
  assert.equal(isResponseTo(withId(answer, 1), QUERY, query), false)
  assert.equal(isResponseTo(QUERY, QUERY, query), false)
  const otherName = Buffer.from(answer)
  otherName.write('f', 13)
  assert.equal(isResponseTo(otherName, QUERY, query), false)
})

test('name servers are read from resolv.conf, without our own address', () => {
  const text = '# x\nsearch lan\nnameserver 10.0.0.1\n nameserver ::1\nnameserver 169.254.1.1\nnameserver bad\n'

  assert.deepEqual(parseResolvConf(text), [
    { address: '10.0.0.1', port: 53 },
    { address: '::1', port: 53 },
  ])
})

test('one source cannot exhaust the limit of all', () => {
  const limiter = new SourceLimiter({ perSource: 2, total: 3 })
  const release = limiter.acquire('a')!
  limiter.acquire('a')

  assert.equal(limiter.acquire('a'), undefined)
  assert.notEqual(limiter.acquire('b'), undefined)
  assert.equal(limiter.acquire('c'), undefined)
  release()
  release()
  assert.notEqual(limiter.acquire('c'), undefined)
  assert.equal(limiter.acquire('c'), undefined)
})

test('a query is forwarded with another id and its response has the original id', async (t) => {
  const ids: number[] = []
  const upstream = await udpServer(t, (socket, packet, from) => {
    ids.push(packet.readUInt16BE(0))
    const answer = renderEmptyResponse(parseQuery(packet)!, RCODE.SERVFAIL)
    // A forged response with a wrong id is ignored.
    socket.send(withId(answer, ids[0]! ^ 1), from.port, from.address)
    socket.send(answer, from.port, from.address)
  })
  const server = await dns(t, [upstream])

  const answers = [await queryUdp(t, server), await queryUdp(t, server), await queryUdp(t, server)]

  for (const answer of answers) assert.equal(answer.readUInt16BE(0), 0x1234)
  assert.ok(new Set([...ids, 0x1234]).size > 2)
})

test('when a name server does not answer, the next one is used', async (t) => {
  const silent = await udpServer(t, () => {})
  const answering = await udpServer(t, (socket, packet, from) =>
    socket.send(renderEmptyResponse(parseQuery(packet)!, RCODE.FORMERR), from.port, from.address),
  )
  const server = await dns(t, [silent, answering])

  const answer = await queryUdp(t, server)

  assert.equal(answer.readUInt8(3) & 0xf, RCODE.FORMERR)
})

test('without a name server the response is SERVFAIL, over UDP and TCP', async (t) => {
  const server = await dns(t, [])
  const socket = connect(server.port, '127.0.0.1')
  t.after(() => socket.destroy())

  socket.write(Buffer.concat([renderFrame(QUERY), renderFrame(withId(QUERY, 7))]))
  const frames = readFrames(socket)
  const first = (await frames.next()).value as Buffer
  const second = (await frames.next()).value as Buffer

  assert.equal((await queryUdp(t, server)).readUInt8(3) & 0xf, RCODE.SERVFAIL)
  assert.equal(first.readUInt8(3) & 0xf, RCODE.SERVFAIL)
  assert.equal(second.readUInt16BE(0), 7)
})

test('a long response over TCP is forwarded completely', async (t) => {
  const upstream = createServer(async (socket) => {
    for await (const packet of readFrames(socket)) {
      const head = renderEmptyResponse(parseQuery(packet)!, RCODE.SERVFAIL)
      socket.write(renderFrame(Buffer.concat([head, Buffer.alloc(60_000)])))
    }
  }).listen(0, '127.0.0.1')
  t.after(() => upstream.close())
  await once(upstream, 'listening')
  const { port } = upstream.address() as { port: number }
  const server = await dns(t, [{ address: '127.0.0.1', port }])
  const socket = connect(server.port, '127.0.0.1')
  t.after(() => socket.destroy())

  socket.write(renderFrame(QUERY))
  const answer = (await readFrames(socket).next()).value as Buffer

  assert.equal(answer.length, QUERY.length + 60_000)
})

test('above the rate, queries over TCP are answered later, and none is refused', async (t) => {
  const server = await dns(t, [], 10)
  const socket = connect(server.port, '127.0.0.1')
  t.after(() => socket.destroy())
  const startedAt = performance.now()

  socket.write(Buffer.concat(Array.from({ length: 20 }, (_, id) => renderFrame(withId(QUERY, id)))))
  const frames = readFrames(socket)
  const ids: number[] = []
  while (ids.length < 20) ids.push(((await frames.next()).value as Buffer).readUInt16BE(0))

  assert.deepEqual(
    ids,
    Array.from({ length: 20 }, (_, id) => id),
  )
  // The first ten at once, the others a tenth of a second apart.
  assert.ok(performance.now() - startedAt > 850)
})

test('the rate of one source does not delay another, and unused turns add up to the burst only', () => {
  const rate = new SourceRate(10, 3)

  assert.deepEqual(
    [1, 2, 3, 4, 5].map(() => rate.take('a', 10_000)),
    [0, 0, 0, 0, 100],
  )
  assert.equal(rate.take('b', 10_000), 0)
  assert.deepEqual(
    [1, 2, 3, 4, 5].map(() => rate.take('a', 60_000)),
    [0, 0, 0, 0, 100],
  )
})

async function dns(t: TestContext, upstreams: Upstream[], perSecond = 1_000): Promise<DnsServer> {
  for (;;) {
    try {
      const server = await startDns(
        { upstreams: async () => upstreams, log, decide: (_, __, packet) => ({ forward: packet }), perSecond },
        '127.0.0.1',
        0,
      )
      t.after(() => server.close())
      return server
    } catch (error) {
      // A port that is free for UDP may be in use for TCP.
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
    }
  }
}

async function queryUdp(t: TestContext, server: DnsServer): Promise<Buffer> {
  const socket = createSocket('udp4')
  t.after(() => socket.close())
  socket.send(QUERY, server.port, '127.0.0.1')
  const [answer] = await once(socket, 'message')
  return answer as Buffer
}

async function udpServer(
  t: TestContext,
  onPacket: (socket: Socket, packet: Buffer, from: RemoteInfo) => void,
): Promise<Upstream> {
  const socket = createSocket('udp4')
  t.after(() => socket.close())
  socket.on('message', (packet, from) => onPacket(socket, packet, from))
  socket.bind(0, '127.0.0.1')
  await once(socket, 'listening')
  return { address: '127.0.0.1', port: socket.address().port }
}
