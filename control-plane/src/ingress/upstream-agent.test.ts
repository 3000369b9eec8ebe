/** Connections into sandboxes that are kept for the next request, and when they are not. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import type { Socket } from 'node:net'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createTestIngress, nameOf, serve, serveRaw } from './testing.ts'

const { ingress, owner, ask, newSandbox, reach, send, metric } = await createTestIngress()
const kept = () => metric('warren_ingress_connections{side="kept"}')
/** As a client sees it the answer is over a moment before the connection is free again. */
const asked = async (name: string, ...rest: [Parameters<typeof ask>[1]?]) => {
  const heard = await ask(name, ...rest)
  await until(async () => (await metric('warren_ingress_connections{side="sandbox"}')) === (await kept()))
  return heard
}

test('requests one after the other share a connection; a body, another port and another sandbox have their own', async () => {
  const [program, other] = [
    await serve((_, response) => response.end('ok')),
    await serve((_, response) => response.end()),
  ]
  const [{ id }, neighbour] = [await newSandbox(), await newSandbox()]

  for (const secure of [false, true, false])
    assert.equal((await asked(nameOf(id, program.port), { secure })).status, 200)
  assert.equal(program.connections, 1)

  await asked(nameOf(id, program.port), { method: 'POST', body: Buffer.from('x') })
  await asked(nameOf(id, program.port), { method: 'DELETE' })
  assert.equal(program.connections, 3)
  await asked(nameOf(id, other.port))
  await asked(nameOf(neighbour.id, program.port))
  assert.deepEqual([program.connections, other.connections], [4, 1])
})

test('a connection that is used often gathers nothing', async (t) => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()
  const warnings: Error[] = []
  const listen = (warning: Error) => void warnings.push(warning)
  process.on('warning', listen)
  t.after(() => process.off('warning', listen))

  for (let i = 0; i < 30; i++) assert.equal((await asked(nameOf(id, program.port))).status, 200)

  assert.deepEqual(warnings, [])
  assert.ok(program.connections < 10, `${program.connections} connections`)
})

test('what was opened before a pause, or before ingress was switched off and on, is not used again', async () => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()
  const name = nameOf(id, program.port)
  await asked(name)

  for (const ingress_enabled of [false, true]) await send('PATCH', `/v1/sandboxes/${id}`, owner, { ingress_enabled })
  assert.equal((await asked(name)).status, 200)
  assert.equal(program.connections, 2)

  await send('POST', `/v1/sandboxes/${id}/pause`, owner)
  await reach(id, 'paused')
  assert.equal((await ask(name)).status, 503)
  await send('POST', `/v1/sandboxes/${id}/resume`, owner)
  await reach(id, 'running')
  assert.equal((await asked(name)).status, 200)
  assert.equal(program.connections, 3)
})

test('a kept connection that the sandbox closes, before or as it is used, is no failure', async () => {
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
    const { status, body } = await asked(nameOf(id, hasty.port))
    assert.deepEqual([status, body.toString()], [200, 'ok'])
  }

  assert.equal(requests, 9)
})

test('a sandbox that speaks out of turn is not listened to', async () => {
  let connections = 0
  const liar = await serveRaw((socket) => {
    connections++
    socket.on('error', () => {})
    socket.on('data', () => {
      socket.write('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok')
      setImmediate(() => socket.write('HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\npoison'))
    })
  })
  const { id } = await newSandbox()

  const bodies: string[] = []
  for (let i = 0; i < 30; i++) bodies.push((await ask(nameOf(id, liar.port))).body.toString())

  // One that says both at once may be 502; what it says out of turn is nobody's answer.
  assert.ok(bodies.includes('ok'))
  assert.deepEqual(
    bodies.filter((body) => body.includes('poison')),
    [],
  )
  assert.ok(connections > 1)
})

test('an answer that ends its connection, or that its reader did not wait for, leaves nothing to share', async () => {
  const last = await serve((_, response) => response.writeHead(200, { Connection: 'close' }).end('ok'))
  const endless = await serve((_, response) => void response.writeHead(200).write('.'))
  const { id } = await newSandbox()
  for (let i = 0; i < 2; i++) await asked(nameOf(id, last.port))
  assert.equal(last.connections, 2)

  for (let i = 0; i < 2; i++) {
    const closed = Promise.withResolvers<void>()
    endless.once('connection', (socket: Socket) => socket.once('close', () => closed.resolve()))
    const headers = { host: nameOf(id, endless.port) }
    const request = http.get({ host: '127.0.0.1', port: ingress.port, headers, agent: false })
    request.on('error', () => {})
    const [response] = (await once(request, 'response')) as [IncomingMessage]
    await once(response, 'data')
    request.destroy()
    await closed.promise
  }
  assert.equal(endless.connections, 2)
})

test('nobody waits for ever: a kept connection is closed after a while', async () => {
  const program = await serve((_, response) => response.end('ok'))
  const { id } = await newSandbox()

  await asked(nameOf(id, program.port))
  assert.ok((await kept()) > 0)

  await until(async () => (await kept()) === 0)
})
