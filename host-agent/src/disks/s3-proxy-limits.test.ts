/** Guests that stall, cut, flood and send garbage, and a proxy that keeps serving the others. */
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import http, { type IncomingMessage, type ServerResponse } from 'node:http'
import { type AddressInfo, connect, type Socket } from 'node:net'
import { pipeline, Readable } from 'node:stream'
import { after, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { addGuest, OTHER_SANDBOX, openTestProxy, requestProxy, SANDBOX } from './testing/proxy.ts'

const SHORT_MS = scaleLimit(1_000)
const MIB = 1024 ** 2
const OBJECT_BYTES = 256 * MIB
const CREDENTIALS = { accessKey: 'AKIA', secretKey: 'secret' }

const ENTRY = `<Contents><Key>${'k'.repeat(1_000)}</Key><LastModified>x</LastModified><ETag>"1"</ETag><Size>1</Size></Contents>`
const LISTING = `<ListBucketResult>${ENTRY.repeat(2_500)}</ListBucketResult>`

/** Sends objects as long as they are read. The test sends the answers in `waiting`: all of keys `wait`, and the rest of prefix `held`. */
const waiting: ServerResponse[] = []
const uploads: { bytes: number; isComplete: boolean; isClosed: boolean }[] = []
let sentBytes = 0
const server = http.createServer((request, response) => {
  if (request.url?.includes('/wait')) return void waiting.push(response)
  if (request.method === 'PUT') return receive(request, response)
  if (request.url?.includes('prefix=held')) {
    response.write('<ListBucketResult>')
    return void waiting.push(response)
  }
  if (request.url?.includes('list-type')) return void response.end(LISTING)
  if (!request.url?.includes('/endless')) return void response.end('object')
  response.writeHead(200, { 'content-length': String(OBJECT_BYTES) })
  pipeline(Readable.from(objectChunks()), response, () => {})
})
function* objectChunks(): Generator<Buffer> {
  const chunk = Buffer.alloc(MIB)
  for (let sent = 0; sent < OBJECT_BYTES; sent += MIB) {
    sentBytes += MIB
    yield chunk
  }
}
function receive(request: IncomingMessage, response: ServerResponse): void {
  const upload = { bytes: 0, isComplete: false, isClosed: false }
  uploads.push(upload)
  request.on('data', (chunk: Buffer) => (upload.bytes += chunk.length))
  request.on('end', () => {
    upload.isComplete = true
    response.writeHead(200, { etag: '"1"', 'content-length': '0' }).end()
  })
  request.on('error', () => {})
  request.on('close', () => (upload.isClosed = true))
}
server.listen(0, '127.0.0.1')
await once(server, 'listening')
after(() => {
  server.closeAllConnections()
  server.close()
})

const endpoint = `http://127.0.0.1:${(server.address() as AddressInfo).port}`
const { proxy } = await openTestProxy(
  { after },
  { deadlines: { headMs: SHORT_MS, stallMs: SHORT_MS, idleMs: SHORT_MS } },
)
const guest = await addGuest(proxy, { endpoint, credentials: CREDENTIALS })
const other = await addGuest(proxy, { endpoint, credentials: CREDENTIALS }, { sandboxIp: OTHER_SANDBOX })
const head = (method: string, target: string, more = '') =>
  `${method} ${target} HTTP/1.1\r\nHost: disks\r\nAuthorization: Bearer ${guest.token}\r\n${more}\r\n`
const digest = (body: Buffer) => `Content-MD5: ${createHash('md5').update(body).digest('base64')}\r\n`

function open(from = SANDBOX): Socket {
  const socket = connect({ host: '127.0.0.1', port: proxy.port, localAddress: from })
  socket.on('error', () => {})
  return socket
}
const isIdle = async () => (await proxy.counts())!.inFlight === 0
const isServed = async () => assert.equal((await other.request('GET', '/key')).text, 'object')

test('a guest that does not read its object holds it up at the server, not in the memory of the proxy', async () => {
  const socket = open()
  socket.pause()
  socket.write(head('GET', '/endless'))
  await until(() => sentBytes > 0)

  await until(isIdle, 'the transfer is ended')
  assert.ok(sentBytes < OBJECT_BYTES / 4, `${sentBytes / MIB} MiB were sent`)
  await isServed()
  socket.destroy()
})

test('a guest that does not read its listings is cut off', async () => {
  const sockets = Array.from({ length: 16 }, () => open())
  for (const socket of sockets) {
    socket.pause()
    socket.write(head('GET', '/?list-type=2').repeat(4))
  }
  await until(async () => !(await isIdle()))

  await isServed()
  await until(isIdle)
  for (const socket of sockets) socket.destroy()
  assert.equal((await guest.request('GET', '/?list-type=2')).status, 200)
})

test('listings of one sandbox may occupy a part of the memory, and the next is refused', async () => {
  const held = Array.from({ length: 5 }, () => guest.request('GET', '/?list-type=2&prefix=held'))

  const refused = await Promise.race(held)
  const served = await other.request('GET', '/?list-type=2')
  await until(() => waiting.length === 5)
  for (const response of waiting.splice(0)) response.end('</ListBucketResult>')

  assert.deepEqual([refused.status, refused.code], [503, 'SlowDown'])
  assert.equal(served.status, 200)
  assert.deepEqual((await Promise.all(held)).map(({ status }) => status).sort(), [200, 200, 200, 200, 503])
})

test('a guest that stops in the middle of an upload, or cuts it, leaves no object', async () => {
  const body = randomBytes(MIB)
  for (const end of ['stall', 'cut']) {
    const socket = open()
    socket.write(head('PUT', '/upload', `Content-Length: ${body.length}\r\n${digest(body)}`))
    socket.write(body.subarray(0, MIB / 2))
    const upload = await until(() => uploads.at(-1)?.bytes === MIB / 2 && uploads.at(-1))
    if (end === 'cut') socket.destroy()

    await until(() => upload.isClosed)
    assert.equal(upload.isComplete, false)
    await until(isIdle)
    socket.destroy()
  }
  await isServed()
})

test('a guest that stops in the middle of a short body is answered that it was too slow', async () => {
  const socket = open()
  socket.write(head('PUT', '/short', `Content-Length: 10\r\n${digest(Buffer.from('0123456789'))}`))
  socket.write('01234')

  const [answer] = (await once(socket, 'data')) as [Buffer]

  assert.match(answer.toString(), /^HTTP\/1.1 408 .*Warren-Error: RequestTimeout/s)
  socket.destroy()
  await until(isIdle)
})

test('connections without a request, with half a head and idle ones are closed', async () => {
  for (const sent of ['', 'GET /key HTTP/1.1\r\nHost: d', head('GET', '/key')]) {
    const socket = open().resume()
    if (sent !== '') socket.write(sent)
    await once(socket, 'close')
  }
  await isServed()
})

const GARBAGE: Record<string, string | Buffer> = {
  'random bytes': randomBytes(4_096),
  'a TLS handshake': Buffer.from('16030100050100000100', 'hex'),
  'HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  'a head of a megabyte': `GET /${'a'.repeat(MIB)} HTTP/1.1\r\nHost: d\r\n\r\n`,
  'a thousand headers': `GET / HTTP/1.1\r\nHost: d\r\n${Array.from({ length: 1_000 }, (_, i) => `a${i}: b\r\n`).join('')}\r\n`,
  'two lengths': 'PUT /a HTTP/1.1\r\nHost: d\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab',
  'a length and chunks': `PUT /a HTTP/1.1\r\nHost: d\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n`,
  'a chunk of an impossible length': `PUT /a HTTP/1.1\r\nHost: d\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n`,
  'a header with a line feed alone': 'GET / HTTP/1.1\nHost: d\n\n',
  'a tunnel': 'CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n',
  'an upgrade': 'GET / HTTP/1.1\r\nHost: d\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n',
}
for (const [name, text] of Object.entries(GARBAGE)) {
  test(`${name}: refused, and the proxy continues`, async () => {
    const answer = await guest.sendRaw(text)

    assert.match(answer, /^$|^HTTP\/1.1 4\d\d /)
    await isServed()
  })
}

test('the seventeenth request of a mount is refused, and other mounts are served', async () => {
  const held = Array.from({ length: 16 }, () => guest.request('GET', '/wait'))
  await until(() => waiting.length === 16)

  const refused = await guest.request('GET', '/key')
  await isServed()
  for (const response of waiting.splice(0)) response.end('late')

  assert.deepEqual([refused.status, refused.code], [503, 'SlowDown'])
  for (const { text } of await Promise.all(held)) assert.equal(text, 'late')
  assert.equal((await guest.request('GET', '/key')).status, 200)
})

test('the sixty-fifth connection of a sandbox is closed, and other sandboxes are served', async () => {
  const sockets = Array.from({ length: 64 }, () => open())
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  await until(async () => (await proxy.counts())!.connections >= 64)

  const [, last] = [await isServed(), open().resume()]
  await once(last, 'close')
  for (const socket of sockets) socket.destroy()

  await until(async () => (await proxy.counts())!.connections === 0)
  assert.equal((await guest.request('GET', '/key')).status, 200)
})

test('a sandbox without a mount gets no connection', async () => {
  await assert.rejects(requestProxy(proxy.port, 'GET', '/key', { token: guest.token, from: '127.0.0.77' }))
})

test('a thousand pipelined requests occupy no more than their share', async () => {
  const flood = open().resume()
  flood.write(head('GET', '/wait').repeat(1_000))
  await until(() => waiting.length > 0)

  await isServed()
  assert.ok((await proxy.counts())!.inFlight <= 17)
  flood.destroy()
  await until(isIdle)
  waiting.splice(0)
})

test('removing a mount ends its requests, and its token is unknown', async () => {
  const removed = await addGuest(proxy, { endpoint, credentials: CREDENTIALS })
  const held = removed.request('GET', '/wait')
  await until(() => waiting.length === 1)

  await proxy.removeMounts([removed.mount.id])

  assert.equal((await held).status, 502)
  const reply = await removed.request('GET', '/key')
  assert.deepEqual([reply.status, reply.code], [401, 'UnknownMount'])
  waiting.splice(0)
})

test('the proxy needs no more memory than at the beginning of a flood, within its limits', async () => {
  const rssMib = () => Number(/VmRSS:\s+(\d+)/.exec(readFileSync(`/proc/${proxy.pid}/status`, 'utf8'))?.[1]) / 1024
  const before = rssMib()
  const sockets = Array.from({ length: 60 }, () => open())
  for (const socket of sockets) {
    socket.pause()
    socket.write(head('GET', '/endless'))
  }
  for (let i = 0; i < 500; i++) await guest.sendRaw(head('PUT', '/x', 'Content-Length: 100\r\n'))

  assert.ok(rssMib() - before < 150, `${before} MiB, then ${rssMib()} MiB`)
  for (const socket of sockets) socket.destroy()
  await until(isIdle)
  await isServed()
})
