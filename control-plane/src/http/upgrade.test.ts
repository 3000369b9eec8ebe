import assert from 'node:assert/strict'
import { once } from 'node:events'
import net from 'node:net'
import { test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { ok } from '@warren/protocol'
import { Type } from 'typebox'
import WebSocket, { WebSocketServer } from 'ws'
import { createTestApp, listenOn } from '../testing/app.ts'
import { takeUpgrade } from './upgrade.ts'

const sockets = new WebSocketServer({ noServer: true })
const { app, user } = await createTestApp({
  routes: (app) => {
    const config = { access: 'user' } as const
    app.post('/tunnel', { config }, async (request, reply) => {
      const { socket, head } = takeUpgrade(request, reply, 'tcp-tunnel')
      socket.write('HTTP/1.1 101 Switching Protocols\r\nUpgrade: tcp-tunnel\r\nConnection: Upgrade\r\n\r\n')
      socket.write(head)
      socket.pipe(socket)
    })
    app.get('/socket', { config }, async (request, reply) => {
      const { socket, head } = takeUpgrade(request, reply, 'websocket')
      sockets.handleUpgrade(request.raw, socket, head, (peer) => peer.on('message', (data) => peer.send(data)))
    })
    app.post('/echo', { config, schema: { body: Type.Object({ text: Type.String() }) } }, async (request) =>
      ok(request.body),
    )
  },
})
const { port, url } = await listenOn(app)
const { key } = await user()

/** A raw connection that records the bytes it receives. */
function connect() {
  const socket = net.connect(port, '127.0.0.1')
  socket.setNoDelay(true)
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk.toString('latin1')
  })
  return {
    socket,
    received: () => text,
    async until(pattern: RegExp): Promise<string> {
      while (!pattern.test(text)) await once(socket, 'data', { signal: AbortSignal.timeout(5_000) })
      return text
    },
  }
}

const head = (line: string, headers: Record<string, string>) =>
  `${line}\r\nHost: x\r\n${Object.entries({ 'X-Api-Key': key, ...headers })
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('')}\r\n`

const UPGRADE = { Connection: 'Upgrade', Upgrade: 'tcp-tunnel' }
const H2C = { Connection: 'Upgrade, HTTP2-Settings', Upgrade: 'h2c', 'HTTP2-Settings': 'AAEAAEAAAAIAAAAA' }

test('a tunnel gets the bytes that came with the request head, and all that follow', async () => {
  const peer = connect()

  peer.socket.write(`${head('POST /tunnel HTTP/1.1', { ...UPGRADE, 'Content-Length': '0' })}early`)
  await peer.until(/early$/)
  peer.socket.write(' and late')

  const text = await peer.until(/late$/)
  assert.match(
    text,
    /^HTTP\/1\.1 101 Switching Protocols\r\nUpgrade: tcp-tunnel\r\nConnection: Upgrade\r\n\r\nearly and late$/,
  )
  peer.socket.destroy()
})

test('a half-closed tunnel still delivers the response', async () => {
  const peer = connect()
  peer.socket.write(head('POST /tunnel HTTP/1.1', UPGRADE))
  await peer.until(/\r\n\r\n$/)

  peer.socket.end('final bytes')
  await once(peer.socket, 'close')

  assert.match(peer.received(), /final bytes$/)
})

test('a WebSocket passes the same checks', async () => {
  const peer = new WebSocket(`${url.replace('http', 'ws')}/socket`, { headers: { 'X-Api-Key': key } })
  await once(peer, 'open')

  peer.send('hello')

  const [data] = await once(peer, 'message')
  assert.equal(String(data), 'hello')
  peer.close()
})

test('a rejected upgrade gets an ordinary JSON response', async () => {
  const cases: [string, Record<string, string>, RegExp][] = [
    ['POST /tunnel HTTP/1.1', { ...UPGRADE, 'X-Api-Key': 'wrong' }, /^HTTP\/1\.1 401 [\s\S]*"auth":"invalid api key"/],
    ['POST /nowhere HTTP/1.1', UPGRADE, /^HTTP\/1\.1 404 [\s\S]*"message":"route not found"/],
    ['GET /socket HTTP/1.1', UPGRADE, /^HTTP\/1\.1 426 [\s\S]*"code":"upgrade_required"/],
  ]
  for (const [line, headers, expected] of cases) {
    const peer = connect()
    peer.socket.write(head(line, headers))
    await once(peer.socket, 'close')
    assert.match(peer.received(), expected)
  }
})

test('a route that needs an upgrade responds 426 without one', async () => {
  const tunnel = await app.inject({ method: 'POST', url: '/tunnel', headers: { 'x-api-key': key } })
  const socket = await app.inject({ url: '/socket', headers: { 'x-api-key': key } })

  assert.deepEqual([tunnel.statusCode, socket.statusCode], [426, 426])
})

test('a request with Upgrade: h2c, as the JDK sends it, is an ordinary request with its body and keep-alive', async () => {
  const peer = connect()
  const body = JSON.stringify({ text: 'first' })
  const request = head('POST /echo HTTP/1.1', {
    ...H2C,
    'Content-Type': 'application/json',
    'Content-Length': `${body.length}`,
  })

  // Head and body in several packets, then a second request on the same connection.
  peer.socket.write(request.slice(0, 40))
  await passTime(20, 'so that the parts arrive in separate packets')
  peer.socket.write(request.slice(40) + body.slice(0, 5))
  await passTime(20, 'so that the parts arrive in separate packets')
  peer.socket.write(body.slice(5))
  await peer.until(/"text":"first"\}\}$/)
  peer.socket.write(request + JSON.stringify({ text: 'again' }))

  await peer.until(/"text":"again"\}\}$/)
  assert.equal(peer.received().match(/HTTP\/1\.1 200 /g)?.length, 2)
  peer.socket.destroy()
})

test('a client that resets an upgraded connection does no harm', async () => {
  const peer = connect()
  peer.socket.write(head('POST /tunnel HTTP/1.1', UPGRADE))
  await peer.until(/\r\n\r\n$/)

  peer.socket.resetAndDestroy()

  assert.equal((await fetch(`${url}/healthz`)).status, 200)
})
