/** When connections into sandboxes are reused for the next request, and when they are not. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createTestIngress, hostnameOf, serve, serveRaw } from './testing.ts'

const { ingress, owner, requestTo, newSandbox, waitForStatus, send, metric } = await createTestIngress()
const countIdle = () => metric('warren_ingress_connections{side="kept"}')
/** Waits until the connection is idle again, which happens shortly after the client has the whole response. */
const requestAndWaitIdle = async (name: string, ...rest: [Parameters<typeof requestTo>[1]?]) => {
  const response = await requestTo(name, ...rest)
  await until(async () => (await metric('warren_ingress_connections{side="sandbox"}')) === (await countIdle()))
  return response
}

test('consecutive requests share a connection, except with a body, to another port or to another sandbox', async () => {
  const [program, other] = [
    await serve((_, response) => response.end('ok')),
    await serve((_, response) => response.end()),
  ]
  const [{ id }, neighbour] = [await newSandbox(), await newSandbox()]

  for (const secure of [false, true, false])
    assert.equal((await requestAndWaitIdle(hostnameOf(id, program.port), { secure })).status, 200)
  assert.equal(program.connections, 1)

  await requestAndWaitIdle(hostnameOf(id, program.port), { method: 'POST', body: Buffer.from('x') })
  await requestAndWaitIdle(hostnameOf(id, program.port), { method: 'DELETE' })
  assert.equal(program.connections, 3)
  await requestAndWaitIdle(hostnameOf(id, other.port))
  await requestAndWaitIdle(hostnameOf(neighbour.id, program.port))
  assert.deepEqual([program.connections, other.connections], [4, 1])
})

test('a connection that is reused often does not accumulate listeners', async (t) => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()
  const warnings: Error[] = []
  const listen = (warning: Error) => void warnings.push(warning)
  process.on('warning', listen)
  t.after(() => process.off('warning', listen))

  for (let i = 0; i < 30; i++) assert.equal((await requestAndWaitIdle(hostnameOf(id, program.port))).status, 200)

  assert.deepEqual(warnings, [])
  assert.ok(program.connections < 10, `${program.connections} connections`)
})

test('a connection opened before a pause, or before ingress was switched off and on, is not reused', async () => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()
  const name = hostnameOf(id, program.port)
  await requestAndWaitIdle(name)

  for (const ingress_enabled of [false, true]) await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled })
  assert.equal((await requestAndWaitIdle(name)).status, 200)
  assert.equal(program.connections, 2)

  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await waitForStatus(id, 'paused')
  assert.equal((await requestTo(name)).status, 503)
  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await waitForStatus(id, 'running')
  assert.equal((await requestAndWaitIdle(name)).status, 200)
  assert.equal(program.connections, 3)
})

test('a request succeeds even if the sandbox closes the idle connection before or during its reuse', async () => {
  let requests = 0
  const hasty = await serveRaw((socket) => {
    socket.on('error', () => {})
    let isFirst = true
    socket.on('data', () => {
      requests++
      if (!isFirst) return void socket.resetAndDestroy()
      isFirst = false
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
    })
  })
  const { id } = await newSandbox()

  for (let i = 0; i < 5; i++) {
    const { status, body } = await requestAndWaitIdle(hostnameOf(id, hasty.port))
    assert.deepEqual([status, body.toString()], [200, 'ok'])
  }

  assert.equal(requests, 9)
})

test('data that a sandbox sends on an idle connection never becomes a response', async () => {
  let connections = 0
  const misbehaving = await serveRaw((socket) => {
    connections++
    socket.on('error', () => {})
    socket.on('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
      setImmediate(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison'))
    })
  })
  const { id } = await newSandbox()

  const bodies: string[] = []
  for (let i = 0; i < 30; i++) bodies.push((await requestTo(hostnameOf(id, misbehaving.port))).body.toString())

  // If both responses arrive together, a 502 is possible. The second one must never reach a client.
  assert.ok(bodies.includes('ok'))
  assert.deepEqual(
    bodies.filter((body) => body.includes('poison')),
    [],
  )
  assert.ok(connections > 1)
})

test('a connection is not reused after `Connection: close` or after an aborted response', async () => {
  const last = await serve((_, response) => response.writeHead(200, { Connection: 'close' }).end('ok'))
  const endless = await serve((_, response) => void response.writeHead(200).write('.'))
  const { id } = await newSandbox()
  for (let i = 0; i < 2; i++) await requestAndWaitIdle(hostnameOf(id, last.port))
  assert.equal(last.connections, 2)

  for (let i = 0; i < 2; i++) {
    const closed = Promise.withResolvers<void>()
    endless.once('connection', (socket: Socket) => socket.once('close', () => closed.resolve()))
    const headers = { host: hostnameOf(id, endless.port) }
    const request = http.get({ host: '127.0.0.1', port: ingress.port, headers, agent: false })
    request.on('error', () => {})
    const [response] = (await once(request, 'response')) as [IncomingMessage]
    await once(response, 'data')
    request.destroy()
    await closed.promise
  }
  assert.equal(endless.connections, 2)
})

test('an idle connection is closed after a while', async () => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()

  await requestAndWaitIdle(hostnameOf(id, program.port))
  assert.ok((await countIdle()) > 0)

  await until(async () => (await countIdle()) === 0)
})
