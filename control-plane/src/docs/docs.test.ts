import assert from 'node:assert/strict'
import { execFileSync } from 'node:child_process'
import { stripTypeScriptTypes } from 'node:module'
import { test } from 'node:test'
import { gunzipSync } from 'node:zlib'
import { Ajv } from 'ajv'
import { createTestApp } from '../testing/app.ts'
import type { Operation } from './complete-document.ts'
import { EXAMPLE_BODIES } from './example-bodies.ts'

const { app, get } = await createTestApp()

test('openapi.json is OpenAPI 3.1 and lists every route of the API', async () => {
  const { body } = await get('/openapi.json')

  assert.equal(body.openapi, '3.1.0')
  assert.deepEqual(Object.keys(body.paths).sort(), [
    '/healthz',
    '/readyz',
    '/v1/audit',
    '/v1/credit',
    '/v1/credit/ledger',
    '/v1/disks',
    '/v1/disks/{idOrName}',
    '/v1/hosts',
    '/v1/metrics',
    '/v1/metrics/timeseries',
    '/v1/networks',
    '/v1/networks/{id}',
    '/v1/plan',
    '/v1/rootfs',
    '/v1/sandboxes',
    '/v1/sandboxes/by-ip/{ip}',
    '/v1/sandboxes/{id}',
    '/v1/sandboxes/{id}/access-token',
    '/v1/sandboxes/{id}/access-token/rotate',
    '/v1/sandboxes/{id}/bandwidth',
    '/v1/sandboxes/{id}/bandwidth/recharge',
    '/v1/sandboxes/{id}/disks',
    '/v1/sandboxes/{id}/disks/{disk_id}',
    '/v1/sandboxes/{id}/egress',
    '/v1/sandboxes/{id}/egress/decisions',
    '/v1/sandboxes/{id}/egress/flows',
    '/v1/sandboxes/{id}/events',
    '/v1/sandboxes/{id}/exec',
    '/v1/sandboxes/{id}/files',
    '/v1/sandboxes/{id}/fork',
    '/v1/sandboxes/{id}/metrics',
    '/v1/sandboxes/{id}/metrics/timeseries',
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
    '/v1/sandboxes/{id}/resize',
    '/v1/sandboxes/{id}/resume',
    '/v1/sandboxes/{id}/shell',
    '/v1/sandboxes/{id}/shell-ticket',
    '/v1/sandboxes/{id}/shell-ws',
    '/v1/sandboxes/{id}/ssh-pubkeys',
    '/v1/sandboxes/{id}/tunnel/{port}',
    '/v1/shapes',
    '/v1/templates',
    '/v1/templates/{id}',
    '/v1/templates/{id}/logs',
    '/v1/webhook-endpoints',
    '/v1/webhook-endpoints/actions',
    '/v1/webhook-endpoints/{id}',
    '/v1/webhook-endpoints/{id}/deliveries/{delivery}/replay',
    '/v1/webhook-endpoints/{id}/resume',
    '/v1/webhook-endpoints/{id}/suspend',
    '/v1/webhook-endpoints/{id}/test',
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

test('every operation has samples in curl, TypeScript and Python, with its method, path and credential', async () => {
  const { body } = await get('/openapi.json')

  for (const [path, methods] of Object.entries<Record<string, Operation>>(body.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const samples = operation['x-codeSamples'] ?? []
      assert.deepEqual(
        samples.map(({ label }) => label),
        ['curl', 'TypeScript', 'Python'],
      )
      const [beginning] = path.split('{')
      for (const { label, source } of samples) {
        const what = `${label} for ${method} ${path}`
        assert.ok(source.includes(beginning!), what)
        assert.ok(source.includes('WARREN_BASE_URL'), what)
        assert.equal(
          source.includes('WARREN_API_KEY'),
          operation.security?.length !== 0 || label === 'TypeScript',
          what,
        )
        assert.doesNotMatch(source, /undefined|\{id\}|\[object/, what)
      }
    }
  }
})

test('the samples are valid shell, TypeScript and Python', async () => {
  const { body } = await get('/openapi.json')
  const samples = Object.values<Record<string, Operation>>(body.paths).flatMap((methods) =>
    Object.values(methods).flatMap((operation) => operation['x-codeSamples'] ?? []),
  )
  const sources = (label: string) => samples.filter((sample) => sample.label === label).map(({ source }) => source)

  for (const source of sources('curl')) execFileSync('sh', ['-n'], { input: source })
  for (const source of sources('TypeScript')) stripTypeScriptTypes(source)
  const check = 'import ast, json, sys\nfor source in json.load(sys.stdin): ast.parse(source)'
  execFileSync('python3', ['-c', check], { input: JSON.stringify(sources('Python')) })
})

test('every request body has an example, and the route accepts it', async () => {
  const { body } = await get('/openapi.json')
  const ajv = new Ajv({ strict: false })
  const found: string[] = []

  for (const [path, methods] of Object.entries<Record<string, Operation>>(body.paths)) {
    for (const [method, operation] of Object.entries(methods)) {
      const json = operation.requestBody?.content['application/json']
      if (json === undefined) continue
      const name = `${method.toUpperCase()} ${path}`
      found.push(name)
      const isValid = ajv.compile(json.schema!)
      assert.ok(isValid(json.example), `${name}: ${ajv.errorsText(isValid.errors)}`)
    }
  }
  assert.deepEqual(Object.keys(EXAMPLE_BODIES).sort(), found.sort())
})

test('the reference page loads scripts from here only, and its policy allows nothing else', async () => {
  const response = await app.inject('/docs')

  const policy = String(response.headers['content-security-policy'])
  assert.match(String(response.headers['content-type']), /^text\/html/)
  assert.match(policy, /^default-src 'none'; script-src 'self'; /)
  assert.match(policy, /; connect-src 'self'; /)
  assert.doesNotMatch(policy, /script-src[^;]*unsafe|https?:|\*/)
  const scripts = [...response.payload.matchAll(/src="([^"]+)"/g)].map(([, file]) => file!)
  assert.deepEqual(scripts, ['docs/scalar.js', 'docs/start.js'])
  assert.doesNotMatch(response.payload, /<script>|https?:\/\/| on\w+=/)
  for (const file of scripts) {
    const script = await app.inject(`/${file}`)
    assert.equal(script.statusCode, 200)
    assert.match(String(script.headers['content-type']), /^text\/javascript/)
  }
})

test('the script of the reference page is compressed, and not sent twice', async () => {
  const first = await app.inject({ url: '/docs/scalar.js', headers: { 'accept-encoding': 'gzip, br' } })
  const plain = await app.inject('/docs/scalar.js')
  const again = await app.inject({ url: '/docs/scalar.js', headers: { 'if-none-match': String(first.headers.etag) } })

  assert.equal(first.headers['content-encoding'], 'gzip')
  assert.equal(gunzipSync(first.rawPayload).toString(), plain.payload)
  assert.equal(plain.headers['content-encoding'], undefined)
  assert.deepEqual([again.statusCode, again.payload], [304, ''])
})

test('the process does not start with a route that lacks config.access', async () => {
  await assert.rejects(
    createTestApp({ routes: (other) => void other.get('/open-by-mistake', async () => 'oops') }),
    /does not declare config\.access/,
  )
})
