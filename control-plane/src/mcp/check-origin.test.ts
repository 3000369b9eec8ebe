import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createTestApp, listenOn } from '../testing/app.ts'

const config = { baseUrl: 'https://api.example.com/sandboxes', mcpOrigins: ['https://console.example.com'] }
const { app, user } = await createTestApp({ config })
const { port } = await listenOn(app)
const { key } = await user()

async function call(origin: string | undefined) {
  const response = await fetch(`http://127.0.0.1:${port}/mcp`, {
    method: 'POST',
    headers: {
      ...{ 'x-api-key': key, 'content-type': 'application/json', accept: 'application/json, text/event-stream' },
      ...(origin === undefined ? {} : { origin }),
    },
    body: JSON.stringify({ jsonrpc: '2.0', id: 1, method: 'ping' }),
  })
  const text = await response.text()
  return response.status === 403 ? JSON.parse(text).data.code : response.status < 400
}

test('programs and pages of this service may call /mcp', async () => {
  for (const origin of [
    undefined,
    'https://console.example.com',
    'https://api.example.com',
    `http://localhost:${port}`,
    `http://127.0.0.1:${port}`,
    `http://[::1]:${port}`,
    `http://169.254.1.1:${port}`,
  ]) {
    assert.equal(await call(origin), true, `origin ${origin}`)
  }
})

test('pages of other origins may not call /mcp', async () => {
  for (const origin of [
    'https://evil.example',
    'http://api.example.com',
    'https://api.example.com.evil.example',
    'http://localhost:1',
    `http://sb-01-8080.localhost:${port}`,
    `https://localhost:${port}`,
    'null',
    'nonsense',
  ]) {
    assert.equal(await call(origin), 'origin_not_allowed', origin)
  }
})
