/**
 * Requests made from the schemas, right and broken, against the whole app: no answer is a 500, and every answer is
 * what the API's own description declares for its status.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Ajv2020 } from 'ajv/dist/2020.js'
import fc from 'fast-check'
import { createTestApp } from './testing/app.ts'
import { insertSandbox } from './testing/sandboxes.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 150)

type Schema = { type?: string; enum?: unknown[]; minimum?: number; maximum?: number }
type Parameter = { name: string; in: 'query' | 'path'; required?: boolean; schema: Schema }
type Operation = {
  parameters?: Parameter[]
  responses: Record<string, { content?: { 'application/json'?: { schema: object } } }>
}

const { app, deps, user } = await createTestApp()
const ada = await user()
const operator = await user({ operator: true })
const sandbox = await insertSandbox(deps.db, ada.id)
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
  return fc.string({ maxLength: 30 })
}

const pathText = fc.oneof(fc.constantFrom(sandbox.id, foreign.id, 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV'), anyText)

const headers = fc.oneof(
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

const request = fc.constantFrom(...operations).chain(({ method, path, operation }) => {
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
  })
})

function urlOf(path: string, id: string, query: Record<string, string | undefined>, unknown: boolean): string {
  const search = new URLSearchParams()
  for (const [name, value] of Object.entries(query)) if (value !== undefined) search.set(name, value)
  if (unknown) search.set('no_such_parameter', 'x')
  const text = search.toString()
  return path.replace(/\{[^}]+\}/, encodeURIComponent(id) || '%20') + (text === '' ? '' : `?${text}`)
}

test('no request is a 500, and every answer fits the schema declared for its status', async () => {
  const statuses = new Map<number, number>()
  await fc.assert(
    fc.asyncProperty(request, async ({ method, path, id, query, headers, unknown }) => {
      const url = urlOf(path, id, query, unknown)
      const response = await app.inject({ method: method as 'GET', url, headers: headers as Record<string, string> })
      const status = response.statusCode
      statuses.set(status, (statuses.get(status) ?? 0) + 1)

      assert.notEqual(status, 500, url)
      assert.ok(response.headers['x-request-id'])
      // An id like `..` or one with a slash may lead to another route, or to none.
      if (response.json().data?.message === 'route not found') return
      const declared = paths[path]![method.toLowerCase()]!.responses
      const answer = declared[status] ?? declared[`${String(status)[0]}XX`]
      const schema = answer?.content?.['application/json']?.schema
      assert.ok(schema, `${method} ${path} does not declare ${status}`)
      assert.ok(ajv.validate(schema, response.json()), `${url}: ${ajv.errorsText()}\n${response.payload}`)
    }),
    { numRuns: RUNS },
  )
  // Otherwise the requests were all of one kind and this proved little.
  for (const status of [200, 400, 401, 404])
    assert.ok(statuses.has(status), `no ${status} among ${[...statuses.keys()]}`)
})
