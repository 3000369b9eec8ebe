import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import http, { type IncomingMessage } from 'node:http'
import net from 'node:net'
import path from 'node:path'
import { after, test } from 'node:test'
import tls from 'node:tls'
import { until } from '@warren/kit/testing/until'
import { WebSocket, WebSocketServer } from 'ws'
import { openProvidedCertificate } from './certificates.ts'
import { issueAuthority, issueServer, newKeys } from './issue-certificate.ts'
import { createTestIngress, nameOf, serve } from './testing.ts'

const { host, ingress, ca, folder, owner, ask, newSandbox, reach, send } = await createTestIngress()

test('the template is on the view while ingress is on, and leads to the port', async () => {
  const program = await serve((_request, response) => response.end('hello'))
  const { id, ingress_url_template } = await newSandbox()

  assert.equal(ingress_url_template, `https://${id.slice(3).toLowerCase()}-<port>.localhost:${ingress.port}`)
  for (const secure of [false, true]) {
    const { status, body } = await ask(nameOf(id, program.port), { secure })
    assert.deepEqual([status, body.toString()], [200, 'hello'])
  }
  assert.equal((await ask(nameOf(id, program.port).toUpperCase())).status, 200)
})

test('headers pass both ways, Authorization too; what belongs to a connection does not; who asked is told', async () => {
  let heard: IncomingMessage | undefined
  const program = await serve((request, response) => {
    heard = request
    response.writeHead(207, { 'X-Mine': 'yes', 'Set-Cookie': ['a=1', 'b=2'] })
    response.end()
  })
  const { id } = await newSandbox()
  const name = nameOf(id, program.port)

  const { status, headers } = await ask(name, {
    secure: true,
    path: '/a%2Fb?q=1',
    headers: {
      authorization: 'Bearer x',
      connection: 'keep-alive, x-private',
      'x-private': '1',
      'x-forwarded-for': '6.6.6.6',
    },
  })

  assert.equal(status, 207)
  assert.deepEqual([headers['x-mine'], headers['set-cookie']], ['yes', ['a=1', 'b=2']])
  assert.equal(heard!.url, '/a%2Fb?q=1')
  const { authorization, host, ...rest } = heard!.headers
  assert.deepEqual([authorization, host], ['Bearer x', name])
  assert.equal(rest['x-private'], undefined)
  assert.deepEqual(
    [rest['x-forwarded-for'], rest['x-forwarded-proto'], rest['x-forwarded-host']],
    ['127.0.0.1', 'https', name],
  )
})

test('a large body goes in and out whole', async () => {
  const program = await serve((request, response) => void request.pipe(response))
  const { id } = await newSandbox()
  const bytes = randomBytes(20 * 1024 * 1024)

  for (const [field, value] of [
    ['content-length', String(bytes.length)],
    ['transfer-encoding', 'chunked'],
  ] as const) {
    const headers = { [field]: value }
    const { body } = await ask(nameOf(id, program.port), { method: 'POST', headers, body: bytes, secure: true })
    assert.ok(body.equals(bytes))
  }
})

test('a small body that comes with its head arrives whole, and so does the head', async () => {
  const program = await serve((request, response) => {
    request.toArray().then((chunks) => response.end(`${request.method} ${request.url} ${Buffer.concat(chunks)}`))
  })
  const { id } = await newSandbox()

  for (let round = 0; round < 20; round++) {
    const { status, body } = await ask(nameOf(id, program.port), {
      method: 'POST',
      path: `/path/${round}`,
      headers: { 'content-length': '4' },
      body: Buffer.from('body'),
    })
    assert.deepEqual([status, body.toString()], [200, `POST /path/${round} body`])
  }
})

test('an answer that goes on for ever is heard piece by piece, and ends when the reader goes', async () => {
  const closed = Promise.withResolvers<void>()
  const program = await serve((_request, response) => {
    response.writeHead(200, { 'Content-Type': 'text/event-stream' })
    response.write('data: one\n\n')
    response.once('close', () => closed.resolve())
  })
  const { id } = await newSandbox()

  const request = http.get({
    host: '127.0.0.1',
    port: ingress.port,
    headers: { host: nameOf(id, program.port) },
    agent: false,
  })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const [first] = await once(response, 'data')
  assert.equal(String(first), 'data: one\n\n')
  request.destroy()

  await closed.promise
})

test('one connection serves one request after the other', async () => {
  const program = await serve((request, response) => response.end(request.url))
  const { id } = await newSandbox()
  const socket = net.connect(ingress.port, '127.0.0.1')
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })

  for (const path of ['/first', '/second']) {
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${nameOf(id, program.port)}\r\n\r\n`)
    await until(() => text.includes(path))
  }
  socket.destroy()
})

test('a WebSocket and any other upgrade pass, over http and https; a refused one is told', async () => {
  const program = await serve((_request, response) => {
    response.writeHead(403)
    response.end('no')
  })
  const sockets = new WebSocketServer({ noServer: true })
  program.on('upgrade', (request, socket, head) => {
    if (request.url === '/no') return void socket.end('HTTP/1.1 403 Forbidden\r\nContent-Length: 2\r\n\r\nno')
    if (request.headers.upgrade !== 'websocket') {
      socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n')
      return void socket.pipe(socket)
    }
    sockets.handleUpgrade(request, socket, head, (ws) => ws.on('message', (data) => ws.send(`got ${data}`)))
  })
  const { id } = await newSandbox()
  const name = nameOf(id, program.port)

  for (const scheme of ['ws', 'wss']) {
    const options = { headers: { host: name }, ca, servername: name }
    const ws = new WebSocket(`${scheme}://127.0.0.1:${ingress.port}/`, options)
    await once(ws, 'open')
    ws.send('hi')
    const [message] = await once(ws, 'message')
    assert.equal(String(message), 'got hi')
    ws.terminate()
  }
  const request = http.get({
    host: '127.0.0.1',
    port: ingress.port,
    headers: { host: name, connection: 'Upgrade', upgrade: 'echo' },
  })
  const [, socket] = (await once(request, 'upgrade')) as [IncomingMessage, net.Socket]
  socket.write('ping')
  assert.equal(String((await once(socket, 'data'))[0]), 'ping')
  socket.destroy()
  const refused = await ask(name, { path: '/no', headers: { connection: 'Upgrade', upgrade: 'echo' } })
  assert.deepEqual([refused.status, refused.body.toString()], [403, 'no'])
  const ordinary = await ask(name, { headers: { connection: 'Upgrade, HTTP2-Settings', upgrade: 'h2c' } })
  assert.equal(ordinary.status, 403)
})

test('what is not there, not allowed or not a sandbox looks the same', async () => {
  const program = await serve((_request, response) => response.end('secret'))
  const { id } = await newSandbox({ ingress_enabled: false })
  const gone = await newSandbox()
  await send('DELETE', `/v1/sandboxes/${gone.id}`, owner)
  await reach(gone.id, 'destroyed')

  const pages = new Set<string>()
  for (const name of [
    nameOf(id, program.port),
    nameOf(gone.id, program.port),
    nameOf('sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 80),
    'localhost',
    `${nameOf(id, program.port)}.example.com`,
    nameOf(id, 99_999),
    'example.com',
  ]) {
    const { status, body } = await ask(name)
    assert.equal(status, 404, name)
    pages.add(body.toString())
  }
  assert.equal(pages.size, 1)
})

test('a PATCH opens and closes the door at once, also for what is open', async () => {
  const program = await serve((_request, response) => {
    response.writeHead(200)
    response.write('.')
  })
  const { id } = await newSandbox({ ingress_enabled: false })
  const name = nameOf(id, program.port)

  const on = await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled: true })
  assert.ok(on.body.data.ingress_url_template)
  const request = http.get({ host: '127.0.0.1', port: ingress.port, headers: { host: name }, agent: false })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.resume()
  const cut = Promise.withResolvers<void>()
  response.on('error', () => cut.resolve())
  const off = await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled: false })

  assert.equal(off.body.data.ingress_url_template, undefined)
  assert.equal((await ask(name)).status, 404)
  await cut.promise
})

test('a port where nothing listens is 502; so is a program that hangs up', async () => {
  const program = await serve((request) => request.socket.destroy())
  const { id } = await newSandbox()
  const closed = await serve(() => {})
  closed.close()
  await once(closed, 'close')

  assert.equal((await ask(nameOf(id, closed.port))).status, 502)
  assert.equal((await ask(nameOf(id, program.port))).status, 502)
})

test('a paused sandbox is 503 with Retry-After; with auto_resume a request wakes it', async () => {
  const program = await serve((_request, response) => response.end('awake'))
  const asleep = await newSandbox()
  const wakes = await newSandbox({ auto_resume: true })
  for (const { id } of [asleep, wakes]) {
    await send('POST', `/v1/sandboxes/${id}/pause`, owner)
    await reach(id, 'paused')
  }

  const refused = await ask(nameOf(asleep.id, program.port))
  assert.deepEqual([refused.status, refused.headers['retry-after']], [503, '2'])
  const woken = await ask(nameOf(wakes.id, program.port))
  assert.deepEqual([woken.status, woken.body.toString()], [200, 'awake'])
})

test('a host that does not answer is 503', async () => {
  const program = await serve((_request, response) => response.end())
  const { id } = await newSandbox()
  await host.stop()

  const { status } = await ask(nameOf(id, program.port))
  await host.start()

  assert.equal(status, 503)
})

test('the certificate is for the name that was asked for, by an authority that may vouch for nothing else', async () => {
  const name = nameOf('sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 8080)
  const socket = tls.connect({
    host: '127.0.0.1',
    port: ingress.port,
    servername: name,
    ca,
    ALPNProtocols: ['h2', 'http/1.1'],
  })
  await once(socket, 'secureConnect')

  assert.equal(socket.authorized, true)
  assert.equal(socket.alpnProtocol, 'http/1.1')
  assert.equal(socket.getPeerCertificate().subjectaltname, `DNS:${name}`)
  socket.destroy()
})

test('a given certificate is shown, and the next one as soon as it is there', async () => {
  const [cert, key] = [path.join(folder, 'given.pem'), path.join(folder, 'given.key')]
  const keys = newKeys()
  const authority = { name: 'test', key: keys.privateKey, publicKey: keys.publicKey }
  const write = async (name: string) => {
    const pair = newKeys()
    await writeFile(key, pair.privateKey.export({ type: 'pkcs8', format: 'pem' }))
    await writeFile(cert, issueServer(authority, pair.publicKey, name, 1))
  }
  assert.match(issueAuthority(authority, 'example.com', 1), /BEGIN CERTIFICATE/)
  await write('one.example.com')
  const given = await openProvidedCertificate(cert, key, { warn() {}, info() {} })
  after(() => given.close())
  const first = given.contextFor('any')

  await write('two.example.com')

  await until(() => given.contextFor('any') !== first)
})
