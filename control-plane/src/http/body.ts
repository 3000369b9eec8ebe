/**
 * Request bodies. JSON routes parse every body as JSON, whatever its headers: clients send no Content-Type, a wrong one,
 * chunks, a length of 0 or nothing at all. No body, `{}` and `null` are equal.
 */
import type { IncomingMessage } from 'node:http'
import { badField, failure } from '@warren/kit/failure'
import type { FastifyInstance } from 'fastify'
import { parse } from 'secure-json-parse'
import { discardBody, hasBody } from './refused-body.ts'

export const JSON_BODY_MAX_BYTES = 256 * 1024
/** For routes whose bodies carry the user's data: commands, environments, input, files of MCP tools. */
export const LARGE_JSON_BODY_MAX_BYTES = 4 * 1024 * 1024

/** `seconds` is the time in which a body must arrive. */
export function acceptJsonBodies(app: FastifyInstance, seconds: number): void {
  app.removeAllContentTypeParsers()
  // Fastify rejects a malformed Content-Type before it calls any parser.
  app.addHook('onRequest', (request, _reply, done) => {
    delete request.raw.headers['content-type']
    done()
  })
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => {
    try {
      done(null, parseJson(body as Buffer))
    } catch (error) {
      done(error as Error)
    }
  })
  app.addHook('preParsing', (request, _reply, payload, done) => {
    if (hasBody(request.raw) && !request.routeOptions.config.rawBody) limitTime(request.raw, seconds * 1_000)
    done(null, payload)
  })
  // A route with a body schema gets an object even when the request has no body.
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.body === undefined || request.body === null) request.body = {}
    done()
  })
}

function limitTime(body: IncomingMessage, ms: number): void {
  const timer = setTimeout(() => {
    discardBody(body)
    // If Fastify is reading the body, it responds with the error. A route that ignores the body has no listener.
    if (body.listenerCount('error') === 0) return
    body.emit('error', failure('request_timeout', 'the request body did not arrive in time'))
  }, ms)
  const clear = () => clearTimeout(timer)
  body.once('end', clear).once('close', clear)
}

function parseJson(bytes: Buffer): unknown {
  if (bytes.length === 0) return {}
  const text = bytes.toString('utf8')
  if (text.trim() === '') return {}
  let parsed: unknown
  try {
    // As an own property, `__proto__` would change the prototype of any object it is later assigned to.
    parsed = parse(text, { protoAction: 'error', constructorAction: 'ignore' })
  } catch (error) {
    throw badField({ body: isForbiddenKey(error) ? 'must not contain the key __proto__' : 'is not valid JSON' })
  }
  return parsed ?? {}
}

const isForbiddenKey = (error: unknown): boolean => (error as Error).message.includes('forbidden prototype property')

/**
 * Limits a raw body. Fastify's own limit does not apply once the stream is passed on unread, so the bytes are counted
 * here. When the limit is reached, the body is not destroyed: that would close the connection before the error response
 * is sent.
 */
export async function* limitBytes(body: IncomingMessage, maxBytes: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > maxBytes) throw badField({ body: `is larger than ${maxBytes} bytes` })
    yield chunk
  }
  if (!body.complete) throw new Error('the client disconnected before the end of the request body')
}

/** For a plugin scope whose routes read `request.raw`. Without a body, that stream ends immediately. */
export function acceptRawBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addHook('onRoute', (route) => {
    route.config = { ...route.config, rawBody: true }
  })
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
}
