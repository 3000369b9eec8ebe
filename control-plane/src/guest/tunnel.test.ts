import assert from 'node:assert/strict'
import { createHash, randomBytes } from 'node:crypto'
import { once } from 'node:events'
import net from 'node:net'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { untilStable } from '@warren/kit/testing/until-stable'
import { createTestApp, listenOn, reconnect, type TestUser } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { openUpgrade, type UpgradeClient } from '../testing/upgrade-client.ts'
import { createHostedApp } from '../testing/with-host.ts'

const { app, deps, host, user, create, send } = await createHostedApp()
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const eve = await user()
const { id } = (await create(ada)).body.data

const key = (who: TestUser) => ({ 'X-Api-Key': who.key })
const peers: UpgradeClient[] = []
const tunnel = (to: number | string, early?: string | Buffer, who = ada, sandbox = id) => {
  const peer = openUpgrade(port, `POST /v1/sandboxes/${sandbox}/tunnel/${to}`, key(who), early)
  peers.push(peer)
  return peer
}

/** A server on this machine, whose ports are those of a fake guest. */
async function listen(onConnection: (socket: net.Socket) => void): Promise<number> {
  const server = net.createServer({ allowHalfOpen: true }, (socket) => {
    socket.on('error', () => {})
    onConnection(socket)
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  after(() => server.close())
  return (server.address() as net.AddressInfo).port
}

const echo = await listen((socket) => socket.pipe(socket))

test.beforeEach(() => {
  host.hooks = {}
})
test.afterEach(() => {
  for (const peer of peers.splice(0)) peer.socket.destroy()
})

test('after 101 raw bytes pass in both directions; those sent with the head are not lost', async () => {
  const peer = tunnel(echo, 'early ')

  const head = await peer.head()
  assert.match(
    head,
    /^HTTP\/1\.1 101 Switching Protocols\r\nUpgrade: tcp-tunnel\r\nConnection: Upgrade\r\nX-Request-Id: \S+$/,
  )
  await peer.until(/^early $/)
  peer.socket.write('and late')

  assert.equal(await peer.until(/late$/), 'early and late')
})

test('a half-close passes in both directions', async () => {
  const ends: string[] = []
  const counting = await listen((socket) => {
    let bytes = 0
    socket.on('data', (chunk) => {
      bytes += chunk.length
    })
    socket.once('end', () => {
      ends.push('client')
      socket.end(`got ${bytes}`)
    })
  })
  const peer = tunnel(counting)
  await peer.head()

  peer.socket.end('four')
  await once(peer.socket, 'close')

  assert.deepEqual([peer.body().toString(), ends], ['got 4', ['client']])
})

test('a server that ends first still receives what the client sends afterwards', async () => {
  const heard = Promise.withResolvers<string>()
  const polite = await listen((socket) => {
    socket.end('goodbye')
    socket.on('data', (chunk) => heard.resolve(chunk.toString()))
  })
  const peer = tunnel(polite)

  await peer.until(/goodbye$/)
  if (!peer.socket.readableEnded) await once(peer.socket, 'end')
  peer.socket.end('see you')

  assert.equal(await heard.promise, 'see you')
})

test('megabytes pass unchanged in both directions at once', async () => {
  const peer = tunnel(echo)
  await peer.head()
  const sent = randomBytes(8 * 1024 * 1024)

  peer.socket.end(sent)
  await once(peer.socket, 'end')

  const digest = (bytes: Buffer) => createHash('sha256').update(bytes).digest('hex')
  assert.equal(digest(peer.body()), digest(sent))
})

test('a reader that does not read blocks the sender instead of filling memory', async () => {
  let written = 0
  const flood = await listen((socket) => {
    const chunk = Buffer.alloc(64 * 1024)
    const pump = () => {
      while (!socket.destroyed) {
        written += chunk.length
        if (!socket.write(chunk)) return void socket.once('drain', pump)
      }
    }
    pump()
  })
  const peer = tunnel(flood)
  await peer.head()
  peer.socket.pause()

  await untilStable(() => written, 'the sender is blocked')

  assert.ok(written < 64 * 1024 * 1024, `${written} bytes were taken`)
})

test('a reset on one side resets the other', async () => {
  const inside = Promise.withResolvers<net.Socket>()
  const holding = await listen((socket) => inside.resolve(socket))

  const first = tunnel(holding)
  await first.head()
  const server = await inside.promise
  first.socket.resetAndDestroy()
  await until(() => server.closed)

  const rude = await listen((socket) => socket.once('data', () => socket.resetAndDestroy()))
  const second = tunnel(rude, 'x')
  await second.head()
  await until(() => second.socket.closed)
  assert.ok(second.socket.errored)
})

test('a tunnel that cannot be opened is a JSON error: refused, not running, of another user, no port, no upgrade', async () => {
  const free = await listen(() => {})
  const { id: paused } = await insertSandbox(deps.db, ada.id, 'paused')
  const cases: [ReturnType<typeof tunnel>, RegExp, RegExp][] = [
    [tunnel(1), /^HTTP\/1\.1 502 /, /connection refused in the sandbox/],
    [tunnel(free, '', ada, paused), /^HTTP\/1\.1 409 /, /sandbox is paused, expected running/],
    [tunnel(free, '', eve), /^HTTP\/1\.1 404 /, /"message":"sandbox not found"/],
    [tunnel(0), /^HTTP\/1\.1 400 /, /"port":/],
    [tunnel(65_536), /^HTTP\/1\.1 400 /, /"port":/],
    [tunnel('ssh'), /^HTTP\/1\.1 400 /, /"port":/],
  ]
  for (const [peer, status, text] of cases) {
    await until(() => peer.socket.readableEnded)
    assert.match(await peer.head(), status)
    assert.match(peer.body().toString(), text)
  }
  for (const path of [`tunnel/${free}`, 'shell']) {
    const { status, body } = await send('POST', `/v1/sandboxes/${id}/${path}`, ada)
    assert.deepEqual([status, body.data.code], [426, 'upgrade_required'])
  }
})

test('the tunnels of a lost guest are closed', async () => {
  const { id: other } = (await create(ada)).body.data
  const peer = tunnel(echo, 'x', ada, other)
  await peer.until(/x/)

  await host.stop()

  await until(() => peer.socket.closed)
  await host.start()
})

test('only transferred bytes count as activity', async () => {
  const peer = tunnel(echo)
  await peer.head()
  deps.activity.drain()
  await send('GET', `/v1/sandboxes/${id}`, ada)
  assert.ok(!deps.activity.drain().has(id))

  peer.socket.write('x')
  await peer.until(/x/)

  assert.ok(deps.activity.drain().has(id))
})

test('many concurrent tunnels do not mix their bytes', async () => {
  const hundred = Array.from({ length: 100 }, (_, n) => tunnel(echo, `number ${n}.`))

  const texts = await Promise.all(hundred.map((peer) => peer.until(/\.$/)))

  assert.deepEqual(
    texts,
    hundred.map((_, n) => `number ${n}.`),
  )
})

test('the tunnels of a revoked token are closed', async () => {
  const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, ada)).body.data
  const theirs = openUpgrade(port, `POST /v1/sandboxes/${id}/tunnel/${echo}`, { 'X-Api-Key': token }, 'x')
  const ours = tunnel(echo, 'x')
  await Promise.all([theirs.until(/x/), ours.until(/x/)])

  await send('DELETE', `/v1/sandboxes/${id}/access-token`, ada)

  await until(() => theirs.socket.readableEnded || theirs.socket.closed, 'the tunnel is closed', 5_000)
  assert.equal(ours.socket.closed, false)
})

test('open tunnels do not delay a stop', async () => {
  const other = await createTestApp({ database: reconnect(deps.database), config: { hostSocket: host.socket } })
  const { port: otherPort } = await listenOn(other.app)
  const peer = openUpgrade(otherPort, `POST /v1/sandboxes/${id}/tunnel/${echo}`, key(ada), 'x')
  await peer.until(/x/)

  await other.app.close()

  await until(() => peer.socket.closed || peer.socket.readableEnded)
})
