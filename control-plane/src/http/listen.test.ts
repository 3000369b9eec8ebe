/** The listeners of the API and the base URL. Every address of 127.0.0.0/8 can take the place of the one for sandboxes. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { connect, createServer } from 'node:net'
import { after, test } from 'node:test'
import { createTestApp } from '../testing/app.ts'
import { type ListenConfig, listenForRequests } from './listen.ts'

const CONFIG: ListenConfig = {
  host: '127.0.0.1',
  port: 0,
  guestHost: '127.0.0.77',
  serveGuests: true,
  baseUrl: undefined,
}

async function listen(config: Partial<ListenConfig> = {}, rateLimitPerMinute = 0) {
  const { app } = await createTestApp({ config: { rateLimitPerMinute } })
  const listening = await listenForRequests(app, { ...CONFIG, ...config })
  after(() => listening.close())
  return listening
}

test('with sandboxes the API listens at two addresses, and the base URL is the one that works in a sandbox', async () => {
  const { baseUrl, port, close } = await listen()

  assert.equal(baseUrl, `http://127.0.0.77:${port}`)
  for (const host of ['127.0.0.1', '127.0.0.77'])
    assert.equal((await fetch(`http://${host}:${port}/healthz`)).status, 200)
  await assert.rejects(fetch(`http://127.0.0.78:${port}/healthz`))
  await close()
  await assert.rejects(fetch(`http://127.0.0.77:${port}/healthz`))
})

test('without sandboxes it listens at one address', async () => {
  const { baseUrl, port } = await listen({ serveGuests: false })

  assert.equal(baseUrl, `http://127.0.0.1:${port}`)
  await assert.rejects(fetch(`http://127.0.0.77:${port}/healthz`))
})

test('the base URL of an API for other machines is theirs, and WARREN_BASE_URL overrides it', async () => {
  const urlOf = async (config: Partial<ListenConfig>) => {
    const { baseUrl, port } = await listen(config)
    return baseUrl.replace(String(port), 'PORT')
  }

  assert.equal(await urlOf({ host: '0.0.0.0' }), 'http://127.0.0.77:PORT')
  assert.equal(await urlOf({ host: '0.0.0.0', serveGuests: false }), 'http://127.0.0.1:PORT')
  assert.equal(await urlOf({ host: '::1' }), 'http://127.0.0.77:PORT')
  assert.equal(await urlOf({ baseUrl: 'https://example.com/api' }), 'https://example.com/api')
})

test('requests at the address for sandboxes have no privileges: credentials and limits are the same', async () => {
  const { baseUrl } = await listen({}, 3)
  const forged = { headers: { 'x-forwarded-for': '198.51.100.1', 'x-api-key': 'wrong' } }

  const statuses = []
  for (let i = 0; i < 4; i++) statuses.push((await fetch(`${baseUrl}/v1/whoami`, forged)).status)

  assert.deepEqual(statuses, [401, 401, 401, 429])
})

test('a stop ends connections at the address for sandboxes', async () => {
  const { port, close } = await listen()
  const idle = connect(port, CONFIG.guestHost)
  await once(idle, 'connect')

  const ended = once(idle.resume(), 'close')
  await close()
  await ended
})

test('a port that another program has at the address for sandboxes is an error that names it', async () => {
  const other = createServer().listen(0, CONFIG.guestHost)
  await once(other, 'listening')
  after(() => other.close())
  const { port } = other.address() as { port: number }

  await assert.rejects(
    listen({ port }),
    new RegExp(`cannot listen on 127\\.0\\.0\\.77, .*WARREN_GUEST_HOST.* at port ${port}`),
  )
})
