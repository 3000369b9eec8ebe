/**
 * Sends valid and broken requests, generated from the schemas, to the whole app: no response is a 500, and every
 * response matches what the OpenAPI document declares for its status.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { guestExecFrame, SHAPES } from '@warren/protocol'
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
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
  requestBody?: { content: { 'application/json': { schema: Schema } } }
  responses: Record<string, { content?: { 'application/json'?: { schema: object } } }>
}

const { app, deps, user, create, host } = await createHostedApp({ host: { memMib: 10_000_000 } })
const ada = await user({ plan: 'local' })
const operator = await user({ operator: true })
const live = (await create(ada, { envs: { KEY: 'x' } })).body.data.id
const sandbox = await insertSandbox(deps.db, ada.id)
// Commands are random here: none of them may run on this machine.
host.hooks = {
  guest: (stream) => {
    stream.resume()
    stream.respond({ ':status': 200 })
    stream.write(guestExecFrame('started', Buffer.from('{"pid":1}')))
    stream.end(guestExecFrame('exit', Buffer.from('{"code":0,"timed_out":false}')))
  },
}
const foreign = await insertSandbox(deps.db, operator.id)
for (let i = 0; i < 5; i++) await insertSandbox(deps.db, ada.id, 'paused')

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

const pathText = fc.oneof(
  { weight: 3, arbitrary: fc.constant(live) },
  fc.constantFrom(sandbox.id, foreign.id, 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', '100.64.0.1'),
  anyText,
)

/** Plausible values, so that some requests pass all checks. */
const LIKELY: Record<string, fc.Arbitrary<unknown>> = {
  shape: fc.constantFrom(...SHAPES.map((shape) => shape.id)),
  rootfs: fc.constantFrom('', 'debian:13', null),
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

/** The operations with the most side effects and the strictest input, tried more often than the others. */
const DEEP = ['POST /v1/sandboxes', 'POST /v1/sandboxes/{id}/exec']
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
    id: pathText,
    query: fc.record(query),
    headers,
    unknown: fc.boolean(),
    body: bodyFor(operation),
  })
})

function bodyFor(operation: Operation): fc.Arbitrary<unknown> {
  const schema = operation.requestBody?.content['application/json'].schema
  if (!schema) return fc.constant(undefined)
  return fc.oneof({ weight: 9, arbitrary: matching(schema) }, { weight: 1, arbitrary: fc.jsonValue({ maxDepth: 2 }) })
}

function urlOf(path: string, id: string, query: Record<string, string | undefined>, unknown: boolean): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, value)
  if (unknown) search.set('no_such_parameter', 'x')
  const text = search.toString()
  return path.replace(/\{[^}]+\}/, encodeURIComponent(id) || '%20') + (text === '' ? '' : `?${text}`)
}

test('no request is a 500, and every response matches the schema declared for its status', async () => {
  const statuses = new Map<number, number>()
  const succeeded = new Set<string>()
  const responsesMatch = fc.asyncProperty(request, async ({ method, path, id, query, headers, unknown, body }) => {
    // It must stay running for the requests that follow.
    fc.pre(!((method === 'DELETE' || path.endsWith('/pause')) && id === live))
    const url = urlOf(path, id, query, unknown)
    const response = await app.inject({
      method: method as 'GET',
      url,
      headers: headers as Record<string, string>,
      ...(body === undefined ? {} : { payload: JSON.stringify(body) }),
    })
    const status = response.statusCode
    statuses.set(status, (statuses.get(status) ?? 0) + 1)
    succeeded.add(status === 200 ? `${method} ${path}` : '')

    assert.notEqual(status, 500, `${method} ${url} ${JSON.stringify(body)}`)
    assert.ok(response.headers['x-request-id'])
    // A stream or a file is not JSON.
    if (status === 200 && !String(response.headers['content-type']).includes('json')) return
    if (String(response.headers['content-type']).includes('ndjson')) return
    // An id like `..` or one with a slash may lead to another route, or to none.
    if (response.json().data?.message === 'route not found') return
    const declared = paths[path]![method.toLowerCase()]!.responses
    const declaration = declared[status] ?? declared[`${String(status)[0]}XX`]
    const schema = declaration?.content?.['application/json']?.schema
    assert.ok(schema, `${method} ${path} does not declare ${status}`)
    assert.ok(ajv.validate(schema, response.json()), `${url}: ${ajv.errorsText()}\n${response.payload}`)
  })
  // Repeats until every operation of DEEP has succeeded once; otherwise the requests would prove little.
  for (let round = 0; round < ROUNDS_MAX && !DEEP.every((one) => succeeded.has(one)); round++) {
    await fc.assert(responsesMatch, { numRuns: RUNS })
  }
  for (const status of [200, 400, 401, 404])
    assert.ok(statuses.has(status), `no ${status} among ${[...statuses.keys()]}`)
  for (const one of DEEP) assert.ok(succeeded.has(one), `${one} never succeeded`)
})
