/** Malformed and hostile input, from clients and from sandboxes. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import net, { type Socket } from 'node:net'
import { after, test } from 'node:test'
import tls from 'node:tls'
import { PROXY_LIMITS } from '@warren/kit/http-proxy/client-connections'
import { until } from '@warren/kit/testing/until'
import { createTestIngress, hostnameOf, readAll, serve, serveRaw } from './testing.ts'

/** Short timeouts for the tests about them; the other tests do not come near them. */
const LIMITS = { ...PROXY_LIMITS, firstByteMs: 1_500, handshakeMs: 1_500, headMs: 1_500, connectionsPerAddress: 60 }
const { ingress, ca, requestTo, newSandbox, sendRaw, metric } = await createTestIngress({}, LIMITS)

const received: { method: string; url: string; headers: IncomingMessage['headers']; body: string }[] = []
const program = await serve((request, response) => {
  request.toArray().then(
    (chunks) => {
      const { method = '', url = '', headers } = request
      received.push({ method, url, headers, body: Buffer.concat(chunks).toString('latin1') })
      response.end(`received ${url}`)
    },
    () => {},
  )
})
const { id } = await newSandbox()
const name = hostnameOf(id, program.port)
const statusOf = (text: string) => Number(/^HTTP\/1\.1 (\d+)/.exec(text)?.[1])
/** `sendRaw` reads until the connection closes. After malformed input the ingress closes it; valid requests ask for it. */
const CLOSE = 'Connection: close\r\n'

for (const [what, text] of [
  [
    'both a length and chunks',
    'POST /a HTTP/1.1\r\nHost: @\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  ],
  [
    'chunks and a length, the other way round',
    'POST /a HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n',
  ],
  ['two lengths', 'POST /a HTTP/1.1\r\nHost: @\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nabcde'],
  ['a list of lengths', 'POST /a HTTP/1.1\r\nHost: @\r\nContent-Length: 4, 4\r\n\r\nabcd'],
  ['a length with a sign', 'POST /a HTTP/1.1\r\nHost: @\r\nContent-Length: +4\r\n\r\nabcd'],
  ['another transfer coding', 'POST /a HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n'],
  [
    'a transfer coding that only looks like one',
    'POST /a HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n',
  ],
  [
    'chunked twice',
    'POST /a HTTP/1.1\r\nHost: @\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  ],
  ['chunks in HTTP/1.0', 'POST /a HTTP/1.0\r\nHost: @\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n'],
  ['a space before the colon', 'POST /a HTTP/1.1\r\nHost: @\r\nContent-Length : 4\r\n\r\nabcd'],
  ['a folded line', 'GET /a HTTP/1.1\r\nHost: @\r\nX-A: 1\r\n  Transfer-Encoding: chunked\r\n\r\n'],
  ['a bare line feed', 'GET /a HTTP/1.1\r\nHost: @\r\nX-A: 1\nX-B: 2\r\n\r\n'],
  ['a bare carriage return', 'GET /a HTTP/1.1\r\nHost: @\r\nX-A: 1\rX-B: 2\r\n\r\n'],
  ['a zero byte', 'GET /a HTTP/1.1\r\nHost: @\r\nX-A: 1\0\r\n\r\n'],
  ['two hosts', 'GET /a HTTP/1.1\r\nHost: @\r\nHost: other.localhost\r\n\r\n'],
  ['no host', 'GET /a HTTP/1.1\r\n\r\n'],
  ['no host in HTTP/1.0', 'GET /a HTTP/1.0\r\n\r\n'],
  ['a whole URL', 'GET http://other.localhost/a HTTP/1.1\r\nHost: @\r\n\r\n'],
  [
    'an upgrade with a body',
    'POST /a HTTP/1.1\r\nHost: @\r\nConnection: Upgrade\r\nUpgrade: x\r\nContent-Length: 4\r\n\r\nabcd',
  ],
  [
    'an upgrade in chunks',
    'POST /a HTTP/1.1\r\nHost: @\r\nConnection: Upgrade\r\nUpgrade: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
  ],
  ['not HTTP at all', 'EHLO example.com\r\n\r\n'],
] as const) {
  test(`rejected without reaching the sandbox: ${what}`, async () => {
    received.length = 0
    const smuggled = `GET /smuggled HTTP/1.1\r\nHost: ${name}\r\n${CLOSE}\r\n`

    const response = await sendRaw(text.replace('@', name) + smuggled)

    assert.equal(statusOf(response), 400, response)
    assert.deepEqual(received, [])
  })
}

test('Host and Content-Length are forwarded even if Connection names them', async () => {
  received.length = 0
  const smuggled = 'GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n'
  const head = `GET /outer HTTP/1.1\r\nHost: ${name}\r\nConnection: close, content-length, host\r\nContent-Length: ${smuggled.length}\r\n\r\n`

  const response = await sendRaw(head + smuggled)

  assert.equal(statusOf(response), 200, response)
  assert.deepEqual(
    received.map(({ url, body, headers }) => [url, body, headers.host]),
    [['/outer', smuggled, name]],
  )
})

test('pipelined requests get separate responses in order', async () => {
  const one = (url: string, more = '') => `GET ${url} HTTP/1.1\r\nHost: ${name}\r\n${more}\r\n`

  const response = await sendRaw(one('/1') + one('/2') + one('/3', CLOSE))

  assert.deepEqual([...response.matchAll(/received \S/g)].map(String), ['received /', 'received /', 'received /'])
  assert.ok(response.indexOf('received /1') < response.indexOf('received /2'))
})

test('garbage after a request closes the connection and does not become a second response', async () => {
  const response = await sendRaw(`GET /1 HTTP/1.1\r\nHost: ${name}\r\n\r\n\0\0garbage\r\n\r\n`)

  assert.ok(response === '' || (response.match(/HTTP\/1\.1/g)?.length === 1 && !response.includes('400')), response)
})

test('a host name may be in upper case, with a trailing dot and any port', async () => {
  for (const host of [name.toUpperCase(), `${name}.`, `${name}:1`, `${name.toUpperCase()}.:65535`]) {
    assert.equal((await requestTo(host)).status, 200, host)
  }
  for (const host of [`${name}..`, `.${name}`, `x.${name}`, `${name}:`, `${name}:x`, `${name}@x`, `x@${name}`]) {
    assert.equal((await requestTo(host)).status, 404, host)
  }
})

test('a TLS connection for one sandbox cannot be used for another: 421; without a server name there is no check', async () => {
  const other = hostnameOf((await newSandbox()).id, program.port)
  const over = (servername: string | undefined) =>
    tls.connect({
      host: '127.0.0.1',
      port: ingress.port,
      ca,
      ...(servername ? { servername } : {}),
      rejectUnauthorized: servername !== undefined,
    })
  const get = `GET / HTTP/1.1\r\nHost: ${name}\r\n${CLOSE}\r\n`

  assert.equal(statusOf(await readAll(over(other), get)), 421)
  assert.equal(statusOf(await readAll(over(hostnameOf(id, program.port + 1)), get)), 421)
  assert.equal(statusOf(await readAll(over(name), get)), 200)
  assert.equal(statusOf(await readAll(over(undefined), get)), 200)
})

test('oversized heads are rejected before they are read completely', async () => {
  const many = Array.from({ length: 1_000 }, (_, i) => `X-${i}: ${'y'.repeat(100)}\r\n`).join('')

  assert.equal(statusOf(await sendRaw(`GET / HTTP/1.1\r\nHost: ${name}\r\n${many}`)), 431)
  assert.equal(statusOf(await sendRaw(`GET /${'x'.repeat(100_000)} HTTP/1.1\r\nHost: ${name}\r\n\r\n`)), 431)
})

test('connections without a request, with half a head or half a TLS handshake are closed', async () => {
  const idle = net.connect(ingress.port, '127.0.0.1')
  const slow = net.connect(ingress.port, '127.0.0.1')
  const drip = setInterval(() => slow.write('X-A: 1\r\n'), 100)
  after(() => clearInterval(drip))

  const responses = await Promise.all([
    readAll(idle, ''),
    readAll(slow, `GET / HTTP/1.1\r\nHost: ${name}\r\n`),
    sendRaw('\x16\x03\x01\x02\x00'),
  ])

  clearInterval(drip)
  assert.deepEqual(responses.map(statusOf), [Number.NaN, 408, Number.NaN])
})

test('garbage that begins like TLS is not answered, and the ingress keeps working', async () => {
  assert.doesNotMatch(await sendRaw(`\x16${'garbage'.repeat(100)}`), /HTTP/)
  assert.equal((await requestTo(name, { secure: true })).status, 200)
})

test('a client that half-closes its connection has disconnected: its request is aborted in the sandbox', async () => {
  const [begun, ended] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const waiting = await serve((request) => {
    begun.resolve()
    request.once('close', () => ended.resolve())
  })
  const socket = net.connect(ingress.port, '127.0.0.1')
  socket.write(`GET / HTTP/1.1\r\nHost: ${hostnameOf(id, waiting.port)}\r\n\r\n`)
  await begun.promise

  socket.end()

  await ended.promise
  socket.destroy()
})

test('an upgraded connection may end in one direction and continue in the other', async () => {
  const upper = await serve(() => {})
  upper.on('upgrade', (_request, socket: Socket) => {
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: sum\r\n\r\n')
    let bytes = 0
    socket.on('data', (chunk) => {
      bytes += chunk.length
    })
    socket.once('end', () => socket.end(`${bytes} bytes`))
    Object.assign(socket, { allowHalfOpen: true })
  })
  const head = `GET / HTTP/1.1\r\nHost: ${hostnameOf(id, upper.port)}\r\nConnection: Upgrade\r\nUpgrade: sum\r\n\r\n`
  const socket = net.connect({ host: '127.0.0.1', port: ingress.port, allowHalfOpen: true })

  const response = readAll(socket, head)
  await until(() => socket.bytesRead > 0)
  socket.end('x'.repeat(10_000))

  assert.match(await response, /10000 bytes$/)
})

test('a client that stops reading a WebSocket slows the sandbox and does not fill the memory of the ingress', async () => {
  let [written, closed] = [0, false]
  const flood = await serve(() => {})
  flood.on('upgrade', (_request, socket: Socket) => {
    socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n')
    socket.on('error', () => {})
    socket.once('close', () => {
      closed = true
    })
    const chunk = Buffer.alloc(256 * 1024)
    const writeMore = () => {
      while (!closed) {
        written += chunk.length
        if (!socket.write(chunk)) return void socket.once('drain', writeMore)
      }
    }
    writeMore()
  })
  const request = http.get({
    host: '127.0.0.1',
    port: ingress.port,
    headers: { host: hostnameOf(id, flood.port), connection: 'Upgrade', upgrade: 'websocket' },
  })
  const [, socket] = (await once(request, 'upgrade')) as [IncomingMessage, Socket]
  socket.pause()

  let before = -1
  await until(() => {
    const hasStopped = written === before
    before = written
    return hasStopped
  })
  assert.ok(written < 100 * 1024 * 1024, `${written} bytes were buffered`)
  socket.destroy()
  await until(() => closed)
})

test('an upgrade without a response is aborted when the client disconnects', async () => {
  const [begun, closed] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()]
  const silent = await serveRaw((socket) => {
    socket.on('error', () => {}).once('close', () => closed.resolve())
    socket.once('data', () => begun.resolve())
  })
  const socket = net.connect(ingress.port, '127.0.0.1')
  socket.write(`GET / HTTP/1.1\r\nHost: ${hostnameOf(id, silent.port)}\r\nConnection: Upgrade\r\nUpgrade: odd\r\n\r\n`)
  await begun.promise

  socket.destroy()

  await closed.promise
})

for (const [what, response, status] of [
  ['a status below 100', 'HTTP/1.1 099 Odd\r\nContent-Length: 0\r\n\r\n', 502],
  ['a status of four digits', 'HTTP/1.1 2000 OK\r\nContent-Length: 0\r\n\r\n', 502],
  ['control characters in the reason', 'HTTP/1.1 200 O\x01K\r\nContent-Length: 0\r\n\r\n', 502],
  ['control characters in a header', 'HTTP/1.1 200 OK\r\nX-A: \x01\r\nContent-Length: 0\r\n\r\n', 502],
  [
    'an upgrade that was not requested',
    'HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\nxxx',
    502,
  ],
  ['not HTTP at all', '220 mail.example ESMTP\r\n', 502],
  ['nothing', '', 502],
  [
    'both a length and chunks',
    'HTTP/1.1 200 OK\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n',
    502,
  ],
  ['a huge head', `HTTP/1.1 200 OK\r\nX-A: ${'y'.repeat(100_000)}\r\n\r\n`, 502],
  ['bytes beyond ASCII', 'HTTP/1.1 200 Gr\xfc\xdfe\r\nX-A: \xfc\r\nContent-Length: 0\r\n\r\n', 200],
  [
    'informational responses first',
    'HTTP/1.1 103 Early\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n',
    200,
  ],
] as const) {
  test(`a sandbox that responds with ${what} leads to ${status} and affects no other client`, async () => {
    const odd = await serveRaw((socket) => {
      socket.on('error', () => {})
      socket.once('data', () => socket.end(response, 'latin1'))
    })
    const host = hostnameOf(id, odd.port)

    const responseToGet = await sendRaw(`GET / HTTP/1.1\r\nHost: ${host}\r\n${CLOSE}\r\n`)
    const responseToPost = await sendRaw(`POST / HTTP/1.1\r\nHost: ${host}\r\n${CLOSE}Content-Length: 1\r\n\r\nx`)

    assert.deepEqual([responseToGet, responseToPost].map(statusOf), [status, status])
    assert.equal((await requestTo(name)).status, 200)
  })
}

test('an incomplete response, also to a declined upgrade, does not look complete', async () => {
  const half = await serveRaw((socket) => {
    socket.on('error', () => {})
    socket.once('data', () => {
      socket.write('HTTP/1.1 403 Forbidden\r\nContent-Length: 100\r\n\r\nhalf', () => socket.resetAndDestroy())
    })
  })
  const host = hostnameOf(id, half.port)

  for (const more of ['', 'Connection: Upgrade\r\nUpgrade: odd\r\n']) {
    const response = await sendRaw(`GET / HTTP/1.1\r\nHost: ${host}\r\n${more}\r\n`)
    assert.ok(response === '' || statusOf(response) === 502 || !response.endsWith('\r\n0\r\n\r\n'), response)
  }
})

test('an address has a maximum of connections, and closing some makes room for others', async () => {
  const open = Array.from({ length: LIMITS.connectionsPerAddress + 20 }, () => net.connect(ingress.port, '127.0.0.1'))
  for (const socket of open) socket.on('error', () => {})
  await until(() => open.filter((socket) => socket.closed).length >= 20)

  for (const socket of open) socket.destroy()

  await until(async () => (await requestTo(name).catch(() => undefined))?.status === 200)
})

test('all connections are closed in the end', async () => {
  await until(async () => (await metric('warren_ingress_connections{side="sandbox"}')) === 0)
  await until(async () => (await metric('warren_ingress_connections{side="client"}')) === 0)
})
