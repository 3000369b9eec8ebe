/**
 * Sends valid and broken requests, generated from the schemas, to the whole app: no response is a 500, and every
 * response has a request id and matches what the OpenAPI document declares for its status. Every path parameter gets ids
 * that exist, ids of another user, and text that is no id. Requests go over HTTP, because `inject` resolves `..`.
 */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { type IncomingMessage, request as sendHttp } from 'node:http'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { guestExecFrame, SHAPES } from '@warren/protocol'
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { listenOn } from './testing/app.ts'
import { diskApi, STORE_CONFIG, startStore } from './testing/disks.ts'
import { serveGuest } from './testing/fake-guest.ts'
import { insertSandbox } from './testing/sandboxes.ts'
import { createHostedApp } from './testing/with-host.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 400)
const ROUNDS_MAX = 5

type Schema = {
  type?: string
  enum?: unknown[]
  minimum?: number
  maximum?: number
  anyOf?: Schema[]
  items?: Schema
  properties?: Record<string, Schema>
  required?: string[]
  patternProperties?: Record<string, Schema>
}
type Parameter = { name: string; in: 'query' | 'path'; required?: boolean; schema: Schema }
type Operation = {
  parameters?: Parameter[]
  requestBody?: { content: { 'application/json'?: { schema: Schema } } }
  responses: Record<string, { content?: { 'application/json'?: { schema: object } } }>
}

const { app, deps, user, create, send, get, host } = await createHostedApp({
  host: { memMib: 10_000_000 },
  config: STORE_CONFIG,
})
const { port } = await listenOn(app)
const ada = await user({ plan: 'local' })
const operator = await user({ operator: true })
const { id: live, ip } = (await create(ada, { envs: { KEY: 'x' } })).body.data
const sandbox = await insertSandbox(deps.db, ada.id)
const foreign = await insertSandbox(deps.db, operator.id)
for (let i = 0; i < 5; i++) await insertSandbox(deps.db, ada.id, 'paused')
const processes = `/v1/sandboxes/${live}/processes`
// It has ended, so that waiting for it or following its output ends too.
const { process_id: ended } = (await send('POST', processes, ada, { cmd: 'true' })).body.data
await send('GET', `${processes}/${ended}/wait`, ada)
const { id: network } = (await send('POST', '/v1/networks', ada, { name: 'own' })).body.data
const { id: foreignNetwork } = (await send('POST', '/v1/networks', operator, { name: 'foreign' })).body.data
const templateBody = { name: 'own', dockerfile: 'FROM debian:13\nRUN echo hello' }
const { id: template } = (await send('POST', '/v1/templates', ada, templateBody)).body.data
const { id: foreignTemplate } = (await send('POST', '/v1/templates', operator, templateBody)).body.data
// Built, so that a stream of its log ends.
for (const [who, id] of [
  [ada, template],
  [operator, foreignTemplate],
] as const) {
  await until(async () => (await send('GET', `/v1/templates/${id}`, who)).body.data.status === 'ready')
}
const { register, attach } = diskApi({ send, get }, await startStore())
const { id: disk } = await register(ada, { name: 'own' })
const { id: foreignDisk } = await register(operator, { name: 'foreign' })
assert.equal((await attach(ada, live, disk)).status, 200)
const url = 'https://hooks.invalid/'
const { id: webhook } = (await send('POST', '/v1/webhook-endpoints', ada, { url })).body.data
const { id: foreignWebhook } = (await send('POST', '/v1/webhook-endpoints', operator, { url })).body.data

// Commands are random here: none of them may run on this machine.
host.hooks = {
  guest: (stream, url, method) => {
    const starts = method === 'POST' && url.pathname.endsWith('/processes')
    if (url.pathname.includes('/processes') && !starts) {
      return serveGuest(host.vms.get(live)!.guest, method, url, stream)
    }
    stream.resume()
    stream.respond({ ':status': 200 })
    stream.write(guestExecFrame('started', Buffer.from('{"pid":1}')))
    stream.end(guestExecFrame('exit', Buffer.from('{"code":0,"timed_out":false}')))
  },
}

const { paths } = (await app.inject('/openapi.json')).json() as { paths: Record<string, Record<string, Operation>> }
const operations = Object.entries(paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ method, path, operation })),
)
const ajv = new Ajv2020({ strict: false })

const anyText = fc.oneof(
  fc.string({ unit: 'binary', maxLength: 40 }),
  fc.constantFrom('', '0', '-1', '1e9', 'null', 'true', '../..', '%', '\0', "'; drop table users; --", '💥'),
)

function textFor(schema: Schema): fc.Arbitrary<string> {
  if (schema.enum) return fc.constantFrom(...schema.enum.map(String))
  if (schema.type === 'integer') return fc.integer({ min: schema.minimum ?? 0, max: 1_000_000 }).map(String)
  if (schema.type === 'boolean') return fc.constantFrom('true', 'false')
  return fc.string({ maxLength: 30 })
}

/** By name of the parameter; `id` by the first part of the path as well. The first of each list is used most. */
const EXISTING: Record<string, string[]> = {
  'sandboxes id': [live, sandbox.id, foreign.id],
  'networks id': [network, 'own', foreignNetwork, 'foreign'],
  'templates id': [template, 'own', foreignTemplate],
  'webhook-endpoints id': [webhook, foreignWebhook],
  delivery: ['01234567-89ab-4def-8123-456789abcdef'],
  idOrName: [disk, 'own', foreignDisk, 'foreign'],
  disk_id: [disk, 'own', foreignDisk, 'foreign'],
  net: [network, 'own', foreignNetwork, 'foreign'],
  process_id: [ended],
  port: ['1', '22', '65535', '0', '65536', '-1', '1e3', '080'],
  ip: [ip, '100.64.0.1', '0.0.0.0', '::1', '256.1.1.1'],
}

/** Sent as they are. All others are percent-encoded. */
const RAW = ['..', '.', '%2e%2e', '%2F', '%2f..%2f', '%00', '%', '%zz', '%ff', '%c0%af', '+', ';', '*', '@', '%20']
const NO_ID = [
  'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV',
  'sb-',
  'net-',
  'a/b',
  '../..',
  'ü',
  '💥',
  ' ',
  '\0',
  'null',
  'a'.repeat(1000),
]

function pathParameter(path: string, name: string): fc.Arbitrary<string> {
  const existing = EXISTING[name === 'id' ? `${path.split('/')[2]} id` : name]
  assert.ok(existing, `${path}: add values for {${name}} to EXISTING`)
  const encoded = fc
    .oneof(
      fc.constantFrom(...NO_ID),
      anyText.filter((text) => text !== ''),
    )
    .map(encodeURIComponent)
  return fc.oneof(
    { weight: 6, arbitrary: fc.constant(encodeURIComponent(existing[0]!)) },
    { weight: 3, arbitrary: fc.constantFrom(...existing.map(encodeURIComponent)) },
    { weight: 1, arbitrary: fc.constantFrom(...RAW) },
    { weight: 2, arbitrary: encoded },
  )
}

/** The names in braces. */
const parametersOf = (path: string): string[] => [...path.matchAll(/\{([^}]+)\}/g)].map((match) => match[1]!)

/** Plausible values, so that some requests pass all checks. */
const LIKELY: Record<string, fc.Arbitrary<unknown>> = {
  shape: fc.constantFrom(...SHAPES.map((shape) => shape.id)),
  rootfs: fc.constantFrom('', 'debian:13', 'own', null),
  dockerfile: fc.constantFrom('FROM debian:13', 'FROM own\nENV A=1', 'FROM nothing:1', 'COPY . .'),
  name: fc.stringMatching(/^[a-z]{1,20}$/),
  disk_mib: fc.constantFrom(0, 512, 10_240),
  envs: fc.dictionary(fc.stringMatching(/^[A-Z]{1,5}$/), fc.string({ maxLength: 5 }), { maxKeys: 2 }),
  env: fc.constantFrom({}, null, { KEY: 'y' }),
  ssh_pubkeys: fc.constantFrom([], null),
  networks: fc.constantFrom([], null),
  disks: fc.constantFrom([], null),
  egress: fc.constantFrom([], ['*'], ['example.com'], ['none']),
  host_id: fc.constantFrom('', host.id),
  region: fc.constantFrom('', 'eu'),
  bandwidth_quota_bytes: fc.constantFrom(0, null),
}

/** A value that mostly matches the schema, field by field, mixed with values that do not. */
function valueFor(schema: Schema): fc.Arbitrary<unknown> {
  return fc.oneof({ weight: 9, arbitrary: matching(schema) }, { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 2 }) })
}

function matching(schema: Schema): fc.Arbitrary<unknown> {
  if (schema.enum) return fc.constantFrom(...schema.enum)
  if (schema.anyOf) return fc.oneof(...schema.anyOf.map(matching))
  if (schema.type === 'integer') return fc.integer({ min: schema.minimum ?? -5, max: schema.maximum ?? 70_000 })
  if (schema.type === 'boolean') return fc.boolean()
  if (schema.type === 'null') return fc.constant(null)
  if (schema.type === 'array') return fc.array(valueFor(schema.items ?? {}), { maxLength: 3 })
  if (schema.type === 'object' && schema.patternProperties) return fc.dictionary(anyName, anyText, { maxKeys: 3 })
  if (schema.type === 'object') {
    const fields = Object.entries(schema.properties ?? {}).map(([name, one]) => [
      name,
      fc.oneof({ weight: 6, arbitrary: LIKELY[name] ?? matching(one) }, { weight: 1, arbitrary: valueFor(one) }),
    ])
    return fc.record(Object.fromEntries(fields) as Record<string, fc.Arbitrary<unknown>>, {
      requiredKeys: schema.required ?? [],
    })
  }
  return anyText
}
const anyName = fc.oneof(fc.constant('KEY'), fc.stringMatching(/^[A-Za-z_]{1,8}$/), anyText)

const headers = fc.oneof(
  { weight: 3, arbitrary: fc.constant(ada.headers) },
  fc.constantFrom(
    ada.headers,
    operator.headers,
    {},
    { 'x-api-key': '' },
    { 'x-api-key': 'skp_sb_wrong' },
    { 'x-auth-token': 'x' },
    { ...ada.headers, 'content-type': 'application/json' },
    { ...ada.headers, accept: 'text/event-stream' },
  ),
  fc
    .string({ maxLength: 40 })
    .filter((text) => /^[\x20-\x7e]*$/.test(text))
    .map((text) => ({ 'x-api-key': text })),
)

/** Tried more often than the others: the strictest input, and one for each kind of path parameter. */
const DEEP = [
  'POST /v1/sandboxes',
  'POST /v1/sandboxes/{id}/exec',
  'GET /v1/sandboxes/{id}/processes/{process_id}',
  'GET /v1/sandboxes/by-ip/{ip}',
  'GET /v1/networks/{id}',
  'GET /v1/templates/{id}',
]
const isDeep = ({ method, path }: { method: string; path: string }) => DEEP.includes(`${method.toUpperCase()} ${path}`)
const anyOperation = fc.oneof(
  { weight: 4, arbitrary: fc.constantFrom(...operations) },
  { weight: 1, arbitrary: fc.constantFrom(...operations.filter(isDeep)) },
)

const request = anyOperation.chain(({ method, path, operation }) => {
  const parameters = operation.parameters ?? []
  const query = Object.fromEntries(
    parameters
      .filter((one) => one.in === 'query')
      .map((one) => [one.name, fc.option(fc.oneof(textFor(one.schema), anyText), { nil: undefined })]),
  )
  return fc.record({
    method: fc.constant(method.toUpperCase()),
    path: fc.constant(path),
    names: fc.record(Object.fromEntries(parametersOf(path).map((name) => [name, pathParameter(path, name)]))),
    query: fc.record(query),
    headers,
    unknown: fc.boolean(),
    body: bodyFor(operation),
  })
})

function bodyFor(operation: Operation): fc.Arbitrary<unknown> {
  const schema = operation.requestBody?.content['application/json']?.schema
  return schema ? valueFor(schema) : fc.constant(undefined)
}

type Names = Record<string, string>

function urlOf(path: string, names: Names, query: Record<string, string | undefined>, unknown: boolean): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, value)
  if (unknown) search.set('no_such_parameter', 'x')
  const text = search.toString()
  return path.replaceAll(/\{([^}]+)\}/g, (_, name) => names[name]!) + (text === '' ? '' : `?${text}`)
}

type Received = { status: number; headers: IncomingMessage['headers']; text: string }

async function sendRaw(method: string, path: string, headers: Names, body: string | undefined): Promise<Received> {
  const request = sendHttp({ port, method, path, headers: { ...headers, connection: 'close' } })
  request.end(body)
  const [response] = (await once(request, 'response')) as [IncomingMessage]
  const chunks: Buffer[] = []
  for await (const chunk of response) chunks.push(chunk as Buffer)
  return { status: response.statusCode!, headers: response.headers, text: Buffer.concat(chunks).toString() }
}

/** These stay for the requests that follow. */
const NEEDED = [live, network, template, 'own', ended]
const ENDING = [
  'DELETE /v1/sandboxes/{id}',
  'POST /v1/sandboxes/{id}/pause',
  'DELETE /v1/networks/{id}',
  'DELETE /v1/templates/{id}',
  'DELETE /v1/sandboxes/{id}/processes/{process_id}',
]

test('no request is a 500, and every response matches the schema declared for its status', async () => {
  const statuses = new Map<number, number>()
  const succeeded = new Set<string>()
  const responsesMatch = fc.asyncProperty(request, async ({ method, path, names, query, headers, unknown, body }) => {
    fc.pre(!(ENDING.includes(`${method} ${path}`) && NEEDED.includes(Object.values(names as Names).at(-1)!)))
    const url = urlOf(path, names as Names, query, unknown)
    const payload = body === undefined ? undefined : JSON.stringify(body)
    const response = await sendRaw(method, url, headers as Names, payload)
    const { status } = response
    statuses.set(status, (statuses.get(status) ?? 0) + 1)
    succeeded.add(status === 200 ? `${method} ${path}` : '')

    assert.notEqual(status, 500, `${method} ${url} ${payload}`)
    assert.ok(response.headers['x-request-id'], `${method} ${url}: ${status} without a request id`)
    // A stream or a file is not JSON.
    if (status === 200 && !String(response.headers['content-type']).includes('json')) return
    if (String(response.headers['content-type']).includes('ndjson')) return
    const json = JSON.parse(response.text)
    // Only the router itself refuses a path, for example one that is not percent-encoded UTF-8.
    if (json.data?.message === 'route not found') return
    const declared = paths[path]![method.toLowerCase()]!.responses
    const declaration = declared[status] ?? declared[`${String(status)[0]}XX`]
    const schema = declaration?.content?.['application/json']?.schema
    assert.ok(schema, `${method} ${path} does not declare ${status}`)
    assert.ok(ajv.validate(schema, json), `${url}: ${ajv.errorsText()}\n${response.text}`)
  })
  // Repeats until every operation of DEEP has succeeded once; otherwise the requests would prove little.
  for (let round = 0; round < ROUNDS_MAX && !DEEP.every((one) => succeeded.has(one)); round++) {
    await fc.assert(responsesMatch, { numRuns: RUNS })
  }
  for (const status of [200, 400, 401, 404])
    assert.ok(statuses.has(status), `no ${status} among ${[...statuses.keys()]}`)
  for (const one of DEEP) assert.ok(succeeded.has(one), `${one} never succeeded`)
})
