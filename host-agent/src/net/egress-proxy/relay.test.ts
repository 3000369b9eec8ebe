/** Two loopback connections with the relay between them: what enters at one end leaves at the other. */
import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Socket } from 'node:net'
import { type TestContext, test } from 'node:test'
import { relay, relayRequests } from './relay.ts'
import { RequestReader } from './request-reader.ts'

const BULK = randomBytes(8 * 1024 ** 2)
const hash = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')

test('all bytes arrive in both directions, and closing one direction leaves the other open', async (t) => {
  const { guest, server, inner, outer } = await ends(t)
  relay(inner, outer)

  guest.end(BULK)
  const atServer = await readAll(server)
  server.end(BULK)
  const atGuest = await readAll(guest)

  assert.equal(hash(atServer), hash(BULK))
  assert.equal(hash(atGuest), hash(BULK))
})

test('a large body arrives completely after its head', async (t) => {
  const { guest, server, inner, outer } = await ends(t)
  const head = Buffer.from(`POST / HTTP/1.1\r\nHost: shop.example\r\nContent-Length: ${BULK.length}\r\n\r\n`)
  relayRequests(inner, outer, new RequestReader(80), (refusal) => assert.fail(refusal))

  guest.end(Buffer.concat([head, BULK]))

  assert.equal(hash(await readAll(server)), hash(Buffer.concat([head, BULK])))
})

test('a later request to another host is reported and not forwarded', async (t) => {
  const { guest, server, inner, outer } = await ends(t)
  const { promise: refused, resolve } = Promise.withResolvers<string>()
  relayRequests(inner, outer, new RequestReader(80), (refusal) => {
    resolve(refusal)
    inner.destroy()
  })
  const first = 'GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'

  guest.write(`${first}GET / HTTP/1.1\r\nHost: other.example\r\n\r\n`)

  assert.equal(await refused, 'other_host')
  assert.equal((await readAll(server)).toString(), first)
})

test('a WebSocket is relayed once the server accepts it', async (t) => {
  const { guest, server, inner, outer } = await ends(t)
  const requests = new RequestReader(80)
  const upgrade = 'GET / HTTP/1.1\r\nHost: shop.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n'
  // As in the proxy: the first head is read before the server is connected.
  for (const bytes of requests.push(Buffer.from(upgrade)).forward) outer.write(bytes)
  relayRequests(inner, outer, requests, (refusal) => assert.fail(refusal))
  await once(server, 'data')

  server.write('HTTP/1.1 101 Switching Protocols\r\n\r\n')
  await once(guest, 'data')
  guest.end(Buffer.from([0x81, 0x05, 1, 2, 3, 4, 5]))

  assert.deepEqual([...(await readAll(server))], [0x81, 0x05, 1, 2, 3, 4, 5])
})

test('a reset of one side resets the other', async (t) => {
  const { guest, server, inner, outer } = await ends(t)
  relay(inner, outer)
  guest.write('x')
  await once(server, 'data')

  server.resetAndDestroy()

  const [error] = (await once(guest, 'error')) as [NodeJS.ErrnoException]
  assert.equal(error.code, 'ECONNRESET')
})

type Ends = Record<'guest' | 'inner' | 'outer' | 'server', Socket>

/** guest ═ inner … outer ═ server */
async function ends(t: TestContext): Promise<Ends> {
  const [guest, inner] = await pair(t)
  const [outer, server] = await pair(t)
  return { guest, inner, outer, server }
}

async function pair(t: TestContext): Promise<[Socket, Socket]> {
  const listener = createServer({ allowHalfOpen: true }).listen(0, '127.0.0.1')
  await once(listener, 'listening')
  const { port } = listener.address() as AddressInfo
  const one = connect({ port, host: '127.0.0.1', allowHalfOpen: true })
  const [other] = (await once(listener, 'connection')) as [Socket]
  listener.close()
  t.after(() => {
    one.destroy()
    other.destroy()
  })
  other.on('error', () => {})
  return [one, other]
}

/** Reads to the end without closing the other direction, as an async iterator would. */
async function readAll(socket: Socket): Promise<Buffer> {
  const chunks: Buffer[] = []
  socket.on('data', (chunk: Buffer) => chunks.push(chunk))
  await Promise.race([once(socket, 'end'), once(socket, 'close')])
  return Buffer.concat(chunks)
}
