import assert from 'node:assert/strict'
import { once } from 'node:events'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { untilStable } from '@warren/kit/testing/until-stable'
import { encodeShellFrame } from '@warren/protocol'
import { sql } from 'kysely'
import WebSocket from 'ws'
import { listenOn } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { openUpgrade } from '../testing/upgrade-client.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { deleteExpiredShellTickets } from './shell-tickets.ts'

const { app, deps, host, user, create, send } = await createHostedApp()
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const { id } = (await create(ada)).body.data
const { token } = (await send('POST', `/v1/sandboxes/${id}/access-token`, ada)).body.data

const input = (text: string) => Buffer.from(encodeShellFrame({ type: 'input', data: Buffer.from(text) }))
const resize = (rows: number, cols: number) => Buffer.from(encodeShellFrame({ type: 'resize', rows, cols }))

function openSocket(query = '', headers: Record<string, string> = { 'X-Api-Key': ada.key }, sandbox = id) {
  const peer = new WebSocket(`ws://127.0.0.1:${port}/v1/sandboxes/${sandbox}/shell-ws${query}`, { headers })
  let text = ''
  peer.on('message', (data: Buffer, isBinary) => {
    assert.ok(isBinary)
    text += data.toString()
  })
  return { peer, received: () => text, until: (pattern: RegExp) => until(() => pattern.test(text)) }
}

/** The status of a rejected handshake. */
async function rejectedStatus(query: string, headers: Record<string, string> = {}, sandbox = id): Promise<number> {
  const { peer } = openSocket(query, headers, sandbox)
  peer.on('error', () => {})
  const [, response] = await once(peer, 'unexpected-response')
  response.resume()
  return response.statusCode
}

test('a shell accepts frames and sends terminal output; a resize may come first', async () => {
  const early = Buffer.concat([resize(50, 132), input('hello')])
  const peer = openUpgrade(port, `POST /v1/sandboxes/${id}/shell`, { 'X-Api-Key': ada.key }, early)

  assert.match(await peer.head(), /^HTTP\/1\.1 101 [\s\S]*Upgrade: tcp-tunnel/)
  await peer.until(/hello$/)
  peer.socket.write(input('exit'))
  await once(peer.socket, 'end')

  assert.equal(peer.body().toString(), '$ [50x132]hellobye')
})

test('the 101 of every upgrade carries the id of its request', async () => {
  const handshake = { 'Sec-WebSocket-Version': '13', 'Sec-WebSocket-Key': Buffer.alloc(16).toString('base64') }
  const routes = app.routeList.filter(({ url }) => /\/(shell|shell-ws|tunnel)(\/|$)/.test(url))
  assert.equal(routes.length, 3)

  for (const { method, url } of routes) {
    const path = url.replace(':id', id).replace(':port', String(port))
    const upgrade = url.endsWith('-ws') ? { Upgrade: 'websocket', ...handshake } : {}
    const headers = { 'X-Api-Key': ada.key, 'X-Request-Id': 'trace-42', ...upgrade }
    const peer = openUpgrade(port, `${method} ${path}`, headers)
    const head = await peer.head()
    peer.socket.destroy()

    assert.match(head, /^HTTP\/1\.1 101 /, url)
    assert.match(head, /^X-Request-Id: trace-42$/m, url)
  }
})

test('the end of the input reaches the shell, and its remaining output arrives', async () => {
  const peer = openUpgrade(port, `POST /v1/sandboxes/${id}/shell`, { 'X-Api-Key': token })
  await peer.until(/\$ $/)

  peer.socket.end()
  await once(peer.socket, 'close')

  assert.equal(peer.body().toString(), '$ ^D')
})

test('a frame of an unknown type closes the shell', async () => {
  const peer = openUpgrade(port, `POST /v1/sandboxes/${id}/shell`, { 'X-Api-Key': ada.key })
  await peer.until(/\$ $/)

  peer.socket.write(Buffer.from([9, 0, 0, 0, 0]))

  await until(() => peer.socket.closed)
})

test('concurrent shells are independent', async () => {
  const shells = [1, 2, 3].map((n) =>
    openUpgrade(port, `POST /v1/sandboxes/${id}/shell`, { 'X-Api-Key': ada.key }, input(`shell ${n}.`)),
  )

  const texts = await Promise.all(shells.map((shell) => shell.until(/\.$/)))

  assert.deepEqual(texts, ['$ shell 1.', '$ shell 2.', '$ shell 3.'])
  for (const shell of shells) shell.socket.destroy()
})

test('the WebSocket accepts the same frames, several per message or one split over several', async () => {
  const { peer, received, until: seen } = openSocket()
  await once(peer, 'open')
  const [one, two] = [input('split'), Buffer.concat([resize(3, 4), input('together')])]

  peer.send(one.subarray(0, 3))
  peer.send(one.subarray(3))
  peer.send(two)
  await seen(/together$/)
  peer.send(input('exit'))
  const [code] = await once(peer, 'close')

  assert.equal(received(), '$ split[3x4]togetherbye')
  assert.equal(code, 1000)
})

test('a text message closes with 1003, an invalid frame with 1011', async () => {
  const text = openSocket()
  await once(text.peer, 'open')
  text.peer.send('hello')
  assert.equal((await once(text.peer, 'close'))[0], 1003)

  const broken = openSocket()
  await once(broken.peer, 'open')
  broken.peer.send(Buffer.from([9, 0, 0, 0, 0]))
  assert.equal((await once(broken.peer, 'close'))[0], 1011)
})

test('messages after a text message do not reach the shell', async () => {
  let heard = ''
  const closed = Promise.withResolvers<void>()
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 200 })
      stream.on('data', (chunk) => {
        heard += chunk
      })
      stream.once('close', () => closed.resolve())
    },
  }
  const { peer } = openSocket()
  await once(peer, 'open')

  peer.send('hello')
  for (let n = 0; n < 100; n++) peer.send(input('rm -r precious\n'))
  await closed.promise

  assert.equal(heard, '')
  host.hooks = {}
})

test('closing the WebSocket ends the shell', async () => {
  const closed = Promise.withResolvers<number>()
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 200 })
      stream.resume()
      stream.once('close', () => closed.resolve(stream.rstCode ?? 0))
    },
  }
  const { peer } = openSocket()
  await once(peer, 'open')

  peer.close()

  assert.notEqual(await closed.promise, 0)
  host.hooks = {}
})

test('a user credential is accepted in the query, by any of its names', async () => {
  for (const name of ['token', 'access_token', 'api_key']) {
    const { peer, until: seen } = openSocket(`?${name}=${ada.key}`, {})
    await seen(/\$ $/)
    peer.close()
  }
  assert.equal(await rejectedStatus('?token=wrong'), 401)
  assert.equal(await rejectedStatus(''), 401)
})

test('an access token is accepted in the header and never in the query', async () => {
  const { peer, until: seen } = openSocket('', { 'X-Api-Key': token })
  await seen(/\$ $/)
  peer.close()

  for (const name of ['token', 'access_token', 'api_key']) assert.equal(await rejectedStatus(`?${name}=${token}`), 401)
  assert.equal((await app.inject(`/v1/sandboxes/${id}?token=${ada.key}`)).statusCode, 401)
  assert.equal(
    (await app.inject({ method: 'POST', url: `/v1/sandboxes/${id}/shell?token=${ada.key}` })).statusCode,
    401,
  )
})

test('a shell that cannot be opened is an ordinary error response: 404, 409, 426, 502', async () => {
  const { id: paused } = await insertSandbox(deps.db, ada.id, 'paused')
  const headers = { 'X-Api-Key': ada.key }
  assert.equal(await rejectedStatus('', headers, 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV'), 404)
  assert.equal(await rejectedStatus('', headers, paused), 409)
  assert.equal((await send('GET', `/v1/sandboxes/${id}/shell-ws`, ada)).status, 426)
  host.hooks = { guest: (stream) => stream.close(2) }
  assert.equal(await rejectedStatus('', headers), 502)
  host.hooks = {}
})

test('a ticket opens one shell, in its sandbox, within a minute', async () => {
  const { id: other } = (await create(ada)).body.data
  const ticketOf = async (caller: typeof ada, sandbox = id) =>
    (await send('POST', `/v1/sandboxes/${sandbox}/shell-ticket`, caller)).body.data.ticket
  const opens = async (query: string, protocols: string[] = [], sandbox = id) => {
    const peer = new WebSocket(`ws://127.0.0.1:${port}/v1/sandboxes/${sandbox}/shell-ws${query}`, protocols)
    const [opened] = await Promise.race([
      once(peer, 'open').then(() => [101]),
      once(peer, 'unexpected-response').then(([, response]) => [response.statusCode]),
    ])
    const { protocol } = peer
    peer.on('error', () => {})
    peer.terminate()
    return [opened, protocol]
  }

  const ticket = await ticketOf(ada)
  assert.deepEqual(await opens(`?ticket=${ticket}`, [], other), [401, ''])
  assert.deepEqual(await opens(`?ticket=${ticket}`), [101, ''])
  assert.deepEqual(await opens(`?ticket=${ticket}`), [401, ''])

  const second = `warren.ticket.${await ticketOf(ada)}`
  assert.deepEqual(await opens('', [second, 'terminal']), [101, 'terminal'])
  assert.deepEqual(await opens('', [second]), [401, ''])

  const expired = await ticketOf(ada)
  await sql`update shell_tickets set expires_at = now()`.execute(deps.db)
  assert.deepEqual(await opens(`?ticket=${expired}`), [401, ''])
  await deleteExpiredShellTickets.run(deps)
  assert.equal((await sql`select from shell_tickets`.execute(deps.db)).rows.length, 0)
})

test('a ticket of an access token is void without the token', async () => {
  const { id: sandbox } = (await create(ada)).body.data
  const owned = (await send('POST', `/v1/sandboxes/${sandbox}/access-token`, ada)).body.data.token
  const created = await send('POST', `/v1/sandboxes/${sandbox}/shell-ticket`, {
    ...ada,
    headers: { 'x-api-key': owned },
  })
  await send('DELETE', `/v1/sandboxes/${sandbox}/access-token`, ada)

  assert.equal(await rejectedStatus(`?ticket=${created.body.data.ticket}`, {}, sandbox), 401)
})

test('a key in the URL still works and is marked in the audit log', async () => {
  const { peer } = openSocket(`?token=${ada.key}`, {})
  await once(peer, 'open')
  peer.terminate()

  const codes = async () => {
    const entries = await send('GET', '/v1/audit?limit=100', ada)
    return entries.body.data.data.map(({ code }: { code?: string }) => code)
  }
  await until(async () => (await codes()).includes('key_in_url'))
})

test('an invalid handshake is rejected with JSON, and opens no shell', async () => {
  const shells = () => host.calls.filter((call) => call.endsWith('/guest/shell')).length
  const before = shells()
  const sound = { 'X-Api-Key': ada.key, Upgrade: 'websocket', 'Sec-WebSocket-Version': '13' }
  const key = 'dGhlIHNhbXBsZSBub25jZQ=='
  const answer = async (headers: Record<string, string>) => {
    const peer = openUpgrade(port, `GET /v1/sandboxes/${id}/shell-ws`, { ...sound, ...headers })
    const { data } = JSON.parse(await peer.until(/\}$/))
    return `${(await peer.head()).split(' ')[1]} ${data.code}`
  }

  assert.equal(await answer({}), '400 validation_failed')
  assert.equal(await answer({ 'Sec-WebSocket-Key': 'short' }), '400 validation_failed')
  assert.equal(await answer({ 'Sec-WebSocket-Key': key, 'Sec-WebSocket-Version': '12' }), '426 upgrade_required')
  assert.equal(shells(), before)
})

test('output for a WebSocket that is not read waits in the guest', async () => {
  let written = 0
  host.hooks = {
    guest: (stream) => {
      stream.respond({ ':status': 200 })
      const chunk = Buffer.alloc(64 * 1024)
      const pump = () => {
        while (!stream.destroyed) {
          written += chunk.length
          if (!stream.write(chunk)) return void stream.once('drain', pump)
        }
      }
      pump()
    },
  }
  const { peer } = openSocket()
  await once(peer, 'open')
  peer.pause()

  await untilStable(() => written, 'the sender is blocked')

  assert.ok(written < 64 * 1024 * 1024, `${written} bytes were taken`)
  peer.terminate()
  host.hooks = {}
})

test('the shells of a revoked token are closed', async () => {
  const { peer, until: seen } = openSocket('', { 'X-Api-Key': token })
  await seen(/\$ $/)
  peer.on('error', () => {})

  await send('POST', `/v1/sandboxes/${id}/access-token/rotate`, ada)

  await until(() => peer.readyState === WebSocket.CLOSED, 'the WebSocket is closed', 5_000)
})
