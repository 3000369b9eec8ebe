/** Serves the API reference: OpenAPI 3.1, generated from the schemas that validate requests and serialise responses. */
import swagger from '@fastify/swagger'
import { ErrorEnvelope, FailEnvelope } from '@warren/protocol'
import type { FastifyInstance, RouteOptions } from 'fastify'
import type { Access } from '../http/caller.ts'
import { renderPage } from './page.ts'

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
  let page: string | undefined
  app.get('/openapi.json', { config: { access: 'public' }, schema: { hide: true } }, async (_request, reply) =>
    reply.type('application/json').send(JSON.stringify(app.swagger())),
  )
  app.get('/docs', { config: { access: 'public' }, schema: { hide: true } }, async (_request, reply) => {
    page ??= renderPage(app.swagger())
    return reply.type('text/html; charset=utf-8').header('Content-Security-Policy', CONTENT_POLICY).send(page)
  })
}

/** The page contains its styles and needs nothing else: no script, no font, no further request. */
const CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

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
