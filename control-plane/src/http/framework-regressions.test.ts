/** Surprising behaviour of Fastify and Ajv that we have run into. Each would come back without any error. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import http from 'node:http'
import { pipeline } from 'node:stream/promises'
import { test } from 'node:test'
import { Envs, ok, success } from '@warren/protocol'
import { Type } from 'typebox'
import { createTestApp, listenOn } from '../testing/app.ts'
import { acceptRawBodies, limitBytes } from './body.ts'

const LIMIT = 1000

const { app } = await createTestApp({
  routes: (app) => {
    const config = { access: 'public' } as const
    app.post('/envs', { config, schema: { body: Type.Object({ envs: Envs }) } }, async (request) => ok(request.body))
    app.get(
      '/leak',
      { config, schema: { response: { 200: success(Type.Object({ shown: Type.Integer() })) } } },
      async () => ok({ shown: 1, password: 'planted' }),
    )
    app.register(async (raw) => {
      acceptRawBodies(raw)
      raw.put('/raw', { config }, async (request) => {
        let bytes = 0
        await pipeline(limitBytes(request.raw, LIMIT), async (source) => {
          for await (const chunk of source) bytes += (chunk as Buffer).length
        })
        return ok({ bytes })
      })
    })
  },
})
const { port } = await listenOn(app)

const postEnvs = async (envs: object) => {
  const response = await app.inject({ method: 'POST', url: '/envs', payload: { envs } })
  return { status: response.statusCode, data: response.json().data }
}

async function put(chunks: number[], headers: http.OutgoingHttpHeaders = {}) {
  const request = http.request({ port, host: '127.0.0.1', method: 'PUT', path: '/raw', headers })
  request.on('error', () => {}) // The server may close the connection when it rejects a body.
  for (const size of chunks) request.write(Buffer.alloc(size))
  request.end()
  const [response] = (await once(request, 'response')) as [http.IncomingMessage]
  const body = JSON.parse((await response.toArray()).join(''))
  return { status: response.statusCode, body }
}

test('a map with a key pattern rejects a key that does not match', async () => {
  assert.deepEqual(await postEnvs({ GOOD_1: 'x' }), { status: 200, data: { envs: { GOOD_1: 'x' } } })
  assert.deepEqual(await postEnvs({ '1BAD': 'x' }), {
    status: 400,
    data: { envs: '1BAD is not a valid name', code: 'validation_failed' },
  })
})

test('an invalid key is rejected, not dropped from the request', async () => {
  const response = await postEnvs({ GOOD: 'x', 'not good': 'y' })

  assert.equal(response.status, 400)
})

test('fields that the response schema does not declare are not sent', async () => {
  const response = await app.inject('/leak')

  assert.equal(response.payload, '{"status":"success","data":{"shown":1}}')
})

test('the bytes of a raw body are counted with Content-Length, without it, and without a body', async () => {
  assert.deepEqual(await put([LIMIT]), { status: 200, body: ok({ bytes: LIMIT }) })
  assert.deepEqual(await put([400, 600], { 'content-length': LIMIT }), { status: 200, body: ok({ bytes: LIMIT }) })
  assert.deepEqual(await put([], { 'content-length': 0 }), { status: 200, body: ok({ bytes: 0 }) })
})

test('a raw body over its limit is rejected, although the framework would let it pass', async () => {
  for (const headers of [{}, { 'content-length': LIMIT + 1 }]) {
    const { status, body } = await put([LIMIT, 1], headers)
    assert.deepEqual([status, body.data.body], [400, `is larger than ${LIMIT} bytes`])
  }
})
