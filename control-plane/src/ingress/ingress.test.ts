import assert from 'node:assert/strict'
import { randomBytes, X509Certificate } from 'node:crypto'
import { once } from 'node:events'
import { writeFile } from 'node:fs/promises'
import http, { type IncomingMessage } from 'node:http'
import net from 'node:net'
import { networkInterfaces } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import tls from 'node:tls'
import { openLocalAuthority, openProvidedCertificate, SIGNATURES_PER_MINUTE } from '@warren/kit/http-proxy/certificates'
import { issueAuthority, issueServer, newKeys } from '@warren/kit/http-proxy/issue-certificate'
import { until } from '@warren/kit/testing/until'
import { ulid } from '@warren/protocol'
import { WebSocket, WebSocketServer } from 'ws'
import { createTestIngress, hostnameOf, readAll, serve } from './testing.ts'

const { host, ingress, ca, folder, owner, requestTo, newSandbox, waitForStatus, send } = await createTestIngress()

test('with ingress on, the view has a URL template that leads to the port', async () => {
  const program = await serve((_request, response) => response.end('hello'))
  const { id, ingress_url_template } = await newSandbox()

  assert.equal(ingress_url_template, `https://${id.slice(3).toLowerCase()}-<port>.localhost:${ingress.port}`)
  for (const secure of [false, true]) {
    const { status, body } = await requestTo(hostnameOf(id, program.port), { secure })
    assert.deepEqual([status, body.toString()], [200, 'hello'])
  }
  assert.equal((await requestTo(hostnameOf(id, program.port).toUpperCase())).status, 200)
})

test('headers pass both ways, hop-by-hop headers do not, and X-Forwarded-* name the client', async () => {
  let received: IncomingMessage | undefined
  const program = await serve((request, response) => {
    received = request
    response.writeHead(207, { 'X-Mine': 'yes', 'Set-Cookie': ['a=1', 'b=2'] })
    response.end()
  })
  const { id } = await newSandbox()
  const name = hostnameOf(id, program.port)

  const { status, headers } = await requestTo(name, {
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
  assert.equal(received!.url, '/a%2Fb?q=1')
  const { authorization, host, ...rest } = received!.headers
  assert.deepEqual([authorization, host], ['Bearer x', name])
  assert.equal(rest['x-private'], undefined)
  assert.deepEqual(
    [rest['x-forwarded-for'], rest['x-forwarded-proto'], rest['x-forwarded-host']],
    ['127.0.0.1', 'https', name],
  )
})

test('a large body passes unchanged in both directions', async () => {
  const program = await serve((request, response) => void request.pipe(response))
  const { id } = await newSandbox()
  const bytes = randomBytes(20 * 1024 * 1024)

  for (const [field, value] of [
    ['content-length', String(bytes.length)],
    ['transfer-encoding', 'chunked'],
  ] as const) {
    const headers = { [field]: value }
    const { body } = await requestTo(hostnameOf(id, program.port), {
      method: 'POST',
      headers,
      body: bytes,
      secure: true,
    })
    assert.ok(body.equals(bytes))
  }
})

test('a small body that arrives together with the head passes unchanged', async () => {
  const program = await serve((request, response) => {
    request.toArray().then((chunks) => response.end(`${request.method} ${request.url} ${Buffer.concat(chunks)}`))
  })
  const { id } = await newSandbox()

  for (let round = 0; round < 20; round++) {
    const { status, body } = await requestTo(hostnameOf(id, program.port), {
      method: 'POST',
      path: `/path/${round}`,
      headers: { 'content-length': '4' },
      body: Buffer.from('body'),
    })
    assert.deepEqual([status, body.toString()], [200, `POST /path/${round} body`])
  }
})

test('an endless response is streamed, and is aborted when the client disconnects', async () => {
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
    headers: { host: hostnameOf(id, program.port) },
    agent: false,
  })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const [first] = await once(response, 'data')
  assert.equal(String(first), 'data: one\n\n')
  request.destroy()

  await closed.promise
})

test('one connection serves consecutive requests', async () => {
  const program = await serve((request, response) => response.end(request.url))
  const { id } = await newSandbox()
  const socket = net.connect(ingress.port, '127.0.0.1')
  let text = ''
  socket.on('data', (chunk) => {
    text += chunk
  })

  for (const path of ['/first', '/second']) {
    socket.write(`GET ${path} HTTP/1.1\r\nHost: ${hostnameOf(id, program.port)}\r\n\r\n`)
    await until(() => text.includes(path))
  }
  socket.destroy()
})

test('WebSockets and other upgrades pass over http and https; a declined upgrade passes the response on', async () => {
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
  const name = hostnameOf(id, program.port)

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
  const declined = await requestTo(name, { path: '/no', headers: { connection: 'Upgrade', upgrade: 'echo' } })
  assert.deepEqual([declined.status, declined.body.toString()], [403, 'no'])
  const ordinary = await requestTo(name, { headers: { connection: 'Upgrade, HTTP2-Settings', upgrade: 'h2c' } })
  assert.equal(ordinary.status, 403)
})

test('absent sandboxes, sandboxes without ingress and foreign names get the same response', async () => {
  const program = await serve((_request, response) => response.end('secret'))
  const { id } = await newSandbox({ ingress_enabled: false })
  const destroyed = await newSandbox()
  await send('DELETE', `/v1/sandboxes/${destroyed.id}`, owner)
  await waitForStatus(destroyed.id, 'destroyed')

  const pages = new Set<string>()
  for (const name of [
    hostnameOf(id, program.port),
    hostnameOf(destroyed.id, program.port),
    hostnameOf('sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 80),
    'localhost',
    `${hostnameOf(id, program.port)}.example.com`,
    hostnameOf(id, 99_999),
    'example.com',
  ]) {
    const { status, body } = await requestTo(name)
    assert.equal(status, 404, name)
    pages.add(body.toString())
  }
  assert.equal(pages.size, 1)
})

test('a PATCH of ingress_enabled takes effect immediately and closes open connections', async () => {
  const program = await serve((_request, response) => {
    response.writeHead(200)
    response.write('.')
  })
  const { id } = await newSandbox({ ingress_enabled: false })
  const name = hostnameOf(id, program.port)

  const on = await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled: true })
  assert.ok(on.body.data.ingress_url_template)
  const request = http.get({ host: '127.0.0.1', port: ingress.port, headers: { host: name }, agent: false })
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  response.resume()
  const aborted = Promise.withResolvers<void>()
  response.on('error', () => aborted.resolve())
  const off = await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled: false })

  assert.equal(off.body.data.ingress_url_template, undefined)
  assert.equal((await requestTo(name)).status, 404)
  await aborted.promise
})

test('a port without a listener is 502, and so is a program that closes the connection', async () => {
  const program = await serve((request) => request.socket.destroy())
  const { id } = await newSandbox()
  const closed = await serve(() => {})
  closed.close()
  await once(closed, 'close')

  assert.equal((await requestTo(hostnameOf(id, closed.port))).status, 502)
  assert.equal((await requestTo(hostnameOf(id, program.port))).status, 502)
})

test('a paused sandbox is 503 with Retry-After; with auto_resume a request resumes it', async () => {
  const program = await serve((_request, response) => response.end('resumed'))
  const paused = await newSandbox()
  const resumable = await newSandbox({ auto_resume: true })
  for (const { id } of [paused, resumable]) {
    await send('POST', `/v1/sandboxes/${id}/pause`, owner)
    await waitForStatus(id, 'paused')
  }

  const rejected = await requestTo(hostnameOf(paused.id, program.port))
  assert.deepEqual([rejected.status, rejected.headers['retry-after']], [503, '2'])
  const resumed = await requestTo(hostnameOf(resumable.id, program.port))
  assert.deepEqual([resumed.status, resumed.body.toString()], [200, 'resumed'])
})

test('an unreachable host is 503', async () => {
  const program = await serve((_request, response) => response.end())
  const { id } = await newSandbox()
  await host.stop()

  const { status } = await requestTo(hostnameOf(id, program.port))
  await host.start()

  assert.equal(status, 503)
})

test('the certificate is for the requested name, and HTTP/2 is not offered', async () => {
  const name = hostnameOf('sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', 8080)
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

test('a client without a server name gets a certificate for the domain and the address it connected to', async () => {
  const program = await serve((_request, response) => response.end('hello'))
  const name = hostnameOf((await newSandbox()).id, program.port)
  const socket = tls.connect({ host: '127.0.0.1', port: ingress.port, ca })
  await once(socket, 'secureConnect')

  assert.equal(socket.authorized, true, String(socket.authorizationError))
  assert.equal(socket.getPeerCertificate().subjectaltname, 'DNS:localhost, DNS:*.localhost, IP Address:127.0.0.1')
  const response = await readAll(socket, `GET / HTTP/1.1\r\nHost: ${name}\r\nConnection: close\r\n\r\n`)
  assert.match(response, /^HTTP\/1\.1 200 [\s\S]*hello/)
})

test('both loopback addresses are served, because names below localhost resolve to both', {
  skip: hasIpv6Loopback() ? false : 'this machine has no IPv6',
}, async () => {
  const socket = tls.connect({ host: '::1', port: ingress.port, ca })
  await once(socket, 'secureConnect')

  assert.equal(socket.authorized, true, String(socket.authorizationError))
  assert.match(String(socket.getPeerCertificate().subjectaltname), /IP Address:0:0:0:0:0:0:0:1/)
  socket.destroy()
})

test('names that lead to no sandbox are signed a limited number of times, and names of sandboxes still are', async () => {
  const handshake = async (name: string) => {
    const socket = tls.connect({
      host: '127.0.0.1',
      port: ingress.port,
      servername: name,
      ca,
      rejectUnauthorized: false,
    })
    await once(socket, 'secureConnect')
    const { subjectaltname } = socket.getPeerCertificate()
    socket.destroy()
    return subjectaltname
  }
  const { id } = await newSandbox()
  const random = () => hostnameOf(`sb-${ulid()}`, 80)

  const signed = []
  for (let i = 0; i < SIGNATURES_PER_MINUTE + 40; i++) {
    const name = random()
    if ((await handshake(name)) === `DNS:${name}`) signed.push(name)
  }

  // A minute may have ended meanwhile; the limit is then renewed in part.
  assert.ok(signed.length <= SIGNATURES_PER_MINUTE + 20, `${signed.length}`)
  assert.match(String(await handshake(random())), /^DNS:localhost, DNS:\*\.localhost/)
  assert.equal(await handshake(signed[0]!), `DNS:${signed[0]}`)
  assert.equal(await handshake(hostnameOf(id, 80)), `DNS:${hostnameOf(id, 80)}`)
})

test('below a domain with a dot one wildcard certificate serves every name', async () => {
  const certificates = await openLocalAuthority('', 'sandboxes.example.com')
  const first = certificates.contextFor('a-80.sandboxes.example.com', undefined)

  assert.equal(certificates.has('b-80.sandboxes.example.com'), true)
  assert.equal(certificates.contextFor('b-80.sandboxes.example.com', undefined), first)
  const { subjectAltName } = new X509Certificate(certificates.defaultFor('').cert)
  assert.equal(subjectAltName, 'DNS:sandboxes.example.com, DNS:*.sandboxes.example.com')
})

test('a provided certificate is used, and its replacement as soon as the files change', async () => {
  const [cert, key] = [path.join(folder, 'provided.pem'), path.join(folder, 'provided.key')]
  const keys = newKeys()
  const authority = { name: 'test', key: keys.privateKey, publicKey: keys.publicKey }
  const write = async (name: string) => {
    const pair = newKeys()
    await writeFile(key, pair.privateKey.export({ type: 'pkcs8', format: 'pem' }))
    await writeFile(cert, issueServer(authority, pair.publicKey, [name], 1))
  }
  assert.match(issueAuthority(authority, 'example.com', 1), /BEGIN CERTIFICATE/)
  await write('one.example.com')
  const provided = await openProvidedCertificate(cert, key, { warn() {}, info() {} })
  after(() => provided.close())
  const first = provided.contextFor('any', undefined)

  await write('two.example.com')

  await until(() => provided.contextFor('any', undefined) !== first)
})

function hasIpv6Loopback(): boolean {
  return networkInterfaces().lo?.some(({ address }) => address === '::1') ?? false
}
