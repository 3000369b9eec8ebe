/** The API describes itself: OpenAPI 3.1 from the same schemas that validate and serialise. */
import swagger from '@fastify/swagger'
import { ErrorEnvelope, FailEnvelope } from '@warren/protocol'
import type { FastifyInstance, RouteOptions } from 'fastify'
import type { Access } from '../http/caller.ts'
import { renderPage } from './page.ts'

const SECURITY = {
  apiKey: { type: 'apiKey', in: 'header', name: 'X-Api-Key', description: "A user's key or a sandbox access token" },
  session: { type: 'apiKey', in: 'header', name: 'X-Auth-Token', description: 'Session token' },
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
          'Isolated microVM sandboxes on your own machine. Every JSON answer is a JSend envelope; every response ' +
          'carries X-Request-Id.',
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

/** The page has its own styles and nothing else: no script, no font, no request to anywhere. */
const CONTENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"

/** What every route shares: the error envelopes and, unless it is public, the credentials. */
function describeRoute(route: RouteOptions): void {
  const access: Access | undefined = route.config?.access
  const schema = route.schema
  if (!schema || schema.hide) return
  schema.security = access === 'public' ? [] : USER_SECURITY
  schema.response = {
    '4xx': { description: 'The caller can mend it', ...FailEnvelope },
    '5xx': { description: 'The service failed', ...ErrorEnvelope },
    ...(schema.response as object | undefined),
  }
}
