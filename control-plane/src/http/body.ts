/**
 * Bodies. JSON routes parse whatever comes as JSON: clients send no type, a wrong one, chunks, a length of 0, or
 * nothing at all, and no body, `{}` and `null` are the same (wire 1.1).
 */
import type { IncomingMessage } from 'node:http'
import { badField } from '@warren/kit/failure'
import type { FastifyInstance } from 'fastify'

export const JSON_BODY_MAX_BYTES = 4 * 1024 * 1024

export function acceptJsonBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  // One that cannot be parsed would be refused before any parser is asked.
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
  // A route with a body schema always gets an object, also when nothing was sent.
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
    // `__proto__` in a body would become an object's own property and travel on from there.
    return JSON.parse(text, (key, value) => (key === '__proto__' ? undefined : value)) ?? {}
  } catch {
    throw badField({ body: 'is not valid JSON' })
  }
}

/**
 * Raw bodies. Fastify's own limit does not hold once the stream is passed on unread, whatever Content-Length says,
 * so the bytes are counted here. The body itself is left alone when this ends early: destroying it would cut the
 * connection that the refusal has to go out on.
 */
export async function* limitBytes(body: IncomingMessage, maxBytes: number): AsyncGenerator<Buffer> {
  let bytes = 0
  for await (const chunk of body.iterator({ destroyOnReturn: false }) as AsyncIterable<Buffer>) {
    bytes += chunk.length
    if (bytes > maxBytes) throw badField({ body: `is larger than ${maxBytes} bytes` })
    yield chunk
  }
  if (!body.complete) throw new Error('the body was cut')
}

/** In a plugin scope of its own: its routes read `request.raw`, which ends at once when nothing was sent. */
export function acceptRawBodies(app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('*', (_request, payload, done) => done(null, payload))
}
