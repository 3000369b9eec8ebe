import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createTestApp } from '../testing/app.ts'

const { app, get } = await createTestApp()

test('openapi.json is OpenAPI 3.1 and lists every route of the API', async () => {
  const { body } = await get('/openapi.json')

  assert.equal(body.openapi, '3.1.0')
  assert.deepEqual(Object.keys(body.paths).sort(), [
    '/healthz',
    '/readyz',
    '/v1/hosts',
    '/v1/networks',
    '/v1/networks/{id}',
    '/v1/rootfs',
    '/v1/sandboxes',
    '/v1/sandboxes/by-ip/{ip}',
    '/v1/sandboxes/{id}',
    '/v1/sandboxes/{id}/access-token',
    '/v1/sandboxes/{id}/access-token/rotate',
    '/v1/sandboxes/{id}/bandwidth',
    '/v1/sandboxes/{id}/bandwidth/recharge',
    '/v1/sandboxes/{id}/disks',
    '/v1/sandboxes/{id}/egress',
    '/v1/sandboxes/{id}/egress/decisions',
    '/v1/sandboxes/{id}/egress/flows',
    '/v1/sandboxes/{id}/events',
    '/v1/sandboxes/{id}/exec',
    '/v1/sandboxes/{id}/files',
    '/v1/sandboxes/{id}/fork',
    '/v1/sandboxes/{id}/networks',
    '/v1/sandboxes/{id}/networks/{net}',
    '/v1/sandboxes/{id}/pause',
    '/v1/sandboxes/{id}/processes',
    '/v1/sandboxes/{id}/processes/{process_id}',
    '/v1/sandboxes/{id}/processes/{process_id}/connect',
    '/v1/sandboxes/{id}/processes/{process_id}/input',
    '/v1/sandboxes/{id}/processes/{process_id}/resize',
    '/v1/sandboxes/{id}/processes/{process_id}/signal',
    '/v1/sandboxes/{id}/processes/{process_id}/stdin/close',
    '/v1/sandboxes/{id}/processes/{process_id}/wait',
    '/v1/sandboxes/{id}/resume',
    '/v1/sandboxes/{id}/shell',
    '/v1/sandboxes/{id}/shell-ws',
    '/v1/sandboxes/{id}/ssh-pubkeys',
    '/v1/sandboxes/{id}/tunnel/{port}',
    '/v1/shapes',
    '/v1/whoami',
  ])
})

test('every operation has a summary, its credentials and its error responses', async () => {
  const { body } = await get('/openapi.json')

  for (const [path, methods] of Object.entries<Record<string, Record<string, unknown>>>(body.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const what = `${method} ${path}`
      assert.ok(operation.summary, what)
      assert.ok(Array.isArray(operation.security), what)
      const [success, ...failures] = Object.keys(operation.responses as object).sort()
      assert.match(success!, /^(200|202|101)$/, what)
      assert.deepEqual(failures, ['4XX', '5XX'], what)
    }
  }
  assert.deepEqual(body.paths['/healthz'].get.security, [])
  assert.equal(body.paths['/v1/whoami'].get.security.length, 3)
})

test('the reference page shows every operation, loads nothing from elsewhere, and escapes HTML', async () => {
  const response = await app.inject('/docs')

  assert.match(String(response.headers['content-type']), /^text\/html/)
  assert.match(String(response.headers['content-security-policy']), /default-src 'none'/)
  for (const path of ['/v1/whoami', '/v1/sandboxes/{id}', '/readyz']) assert.ok(response.payload.includes(path), path)
  assert.ok(response.payload.includes('auto_pause_after_seconds'))
  assert.doesNotMatch(response.payload, /<script|src=|href="http/)
  assert.ok(response.payload.includes('&#60;ulid&#62;'))
})

test('the process does not start with a route that lacks config.access', async () => {
  await assert.rejects(
    createTestApp({ routes: (other) => void other.get('/open-by-mistake', async () => 'oops') }),
    /does not declare config\.access/,
  )
})
