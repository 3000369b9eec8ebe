/**
 * Request bodies. JSON routes parse every body as JSON, whatever its headers: clients send no Content-Type, a wrong one,
 * chunks, a length of 0 or nothing at all. No body, `{}` and `null` are equal.
 */
import type { IncomingMessage } from 'node:http'
import { badField } from '@warren/kit/failure'
import type { FastifyInstance } from 'fastify'

export const JSON_BODY_MAX_BYTES = 4 * 1024 * 1024

export function acceptJsonBodies(app: FastifyInstance): void {
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
  // A route with a body schema gets an object even when the request has no body.
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.body === undefined || request.body === null) request.body = {}
    done()
  })
}

function parseJson(bytes: Buffer): unknown {
  if (bytes.length === 0) return {}
  const text = bytes.toString('utf8')
  if (text.trim() === '') return {}
  try {
    // Dropped: as an own property, `__proto__` would change the prototype of any object it is later assigned to.
    return JSON.parse(text, (key, value) => (key === '__proto__' ? undefined : value)) ?? {}
  } catch {
    throw badField({ body: 'is not valid JSON' })
  }
}

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
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
}
