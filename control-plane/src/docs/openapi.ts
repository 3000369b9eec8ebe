/** Serves the API reference: OpenAPI 3.1, generated from the schemas that validate requests and serialise responses. */
import swagger from '@fastify/swagger'
import { ErrorEnvelope, FailEnvelope } from '@warren/protocol'
import type { FastifyInstance, RouteOptions } from 'fastify'
import type { Access } from '../http/caller.ts'
import { completeDocument, type OpenApiDocument } from './complete-document.ts'
import { CONTENT_POLICY, loadBundle, PAGE, START_SCRIPT } from './page.ts'

const SECURITY = {
  apiKey: {
    type: 'apiKey',
    in: 'header',
    name: 'X-Api-Key',
    description: 'API key of a user, or access token of a sandbox',
  },
  session: { type: 'apiKey', in: 'header', name: 'X-Auth-Token', description: 'Session token of the users service' },
  oauth: { type: 'apiKey', in: 'header', name: 'X-Access-Token', description: 'OAuth access token' },
} as const

const USER_SECURITY = Object.keys(SECURITY).map((name) => ({ [name]: [] }))

export async function describeApi(app: FastifyInstance, version: string): Promise<void> {
  app.addHook('onRoute', describeRoute)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Warren sandbox API',
        version,
        description:
          'Create and control isolated microVM sandboxes. JSON responses use the JSend envelope, and every response ' +
          'has an X-Request-Id header.',
      },
      components: { securitySchemes: SECURITY },
    },
  })
}

export function docsRoutes(app: FastifyInstance): void {
  const hidden = { config: { access: 'public' }, schema: { hide: true } } as const
  let document: string | undefined
  app.get('/openapi.json', hidden, async (_request, reply) => {
    document ??= renderDocument(app)
    return reply.type('application/json').send(document)
  })
  app.get('/docs', hidden, async (_request, reply) =>
    reply.type('text/html; charset=utf-8').header('Content-Security-Policy', CONTENT_POLICY).send(PAGE),
  )
  app.get('/docs/start.js', hidden, async (_request, reply) =>
    reply.type('text/javascript; charset=utf-8').send(START_SCRIPT),
  )
  app.get('/docs/scalar.js', hidden, async (request, reply) => {
    const { plain, gzipped, etag } = await loadBundle()
    reply.headers({ ETag: etag, 'Cache-Control': 'no-cache', Vary: 'Accept-Encoding' })
    if (request.headers['if-none-match'] === etag) return reply.code(304).send()
    reply.type('text/javascript; charset=utf-8')
    const acceptsGzip = /\bgzip\b/.test(request.headers['accept-encoding'] ?? '')
    return acceptsGzip ? reply.header('Content-Encoding', 'gzip').send(gzipped) : reply.send(plain)
  })
}

/** All routes are declared before the first request, so the document does not change. */
function renderDocument(app: FastifyInstance): string {
  const document = structuredClone(app.swagger()) as unknown as OpenApiDocument
  completeDocument(document)
  return JSON.stringify(document)
}

/** Adds what all routes have in common: the error envelopes and, unless the route is public, the credentials. */
function describeRoute(route: RouteOptions): void {
  const access: Access | undefined = route.config?.access
  const schema = route.schema
  if (!schema || schema.hide) return
  schema.security = access === 'public' ? [] : USER_SECURITY
  schema.response = {
    '4xx': { description: 'The request has to change before it can succeed', ...FailEnvelope },
    '5xx': { description: 'The service, or something behind it, failed', ...ErrorEnvelope },
    ...(schema.response as object | undefined),
  }
}
