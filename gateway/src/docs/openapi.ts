/** Serves the API description: OpenAPI 3.1, generated from the schemas of the routes. */
import swagger from '@fastify/swagger'
import type { FastifyInstance, RouteOptions } from 'fastify'
import { Type } from 'typebox'

const SECURITY = Object.fromEntries(
  [
    ['wallet', 'X-Wallet-Address', 'Address of the wallet: 0x and 40 hexadecimal digits'],
    [
      'signature',
      'X-Signature',
      'EIP-191 personal-sign signature of `{wallet}:{timestamp}:{nonce}`, as in the headers',
    ],
    ['timestamp', 'X-Timestamp', 'Unix time in milliseconds, at most 60 s from the clock of the gateway'],
    ['nonce', 'X-Nonce', 'A new UUID for each request'],
  ].map(([key, name, description]) => [
    key,
    { type: 'apiKey' as const, in: 'header' as const, name: name!, description },
  ]),
)
const ALL_HEADERS = Object.fromEntries(Object.keys(SECURITY).map((key) => [key, []]))

export const ErrorBody = Type.Object({ error: Type.String() }, { additionalProperties: true })

export async function describeApi(app: FastifyInstance, version: string, baseUrl: string | undefined): Promise<void> {
  app.addHook('onRoute', describeRoute)
  await app.register(swagger, {
    openapi: {
      openapi: '3.1.0',
      info: {
        title: 'Warren deployment gateway',
        version,
        description:
          'Deploy projects with a wallet: requests are signed, deployments are paid with a token transfer. ' +
          'Every error has the body `{ error }`.',
      },
      ...(baseUrl === undefined ? {} : { servers: [{ url: baseUrl }] }),
      components: { securitySchemes: SECURITY },
    },
  })
}

export function docsRoutes(app: FastifyInstance): void {
  app.get('/openapi.json', { config: { signature: 'none' }, schema: { hide: true } }, async (_request, reply) =>
    reply.type('application/json').send(app.swagger()),
  )
}

/** Adds what all routes have in common: the error body and, unless the route is public, the signed headers. */
function describeRoute(route: RouteOptions): void {
  const { schema, config } = route
  if (!schema || schema.hide) return
  schema.security = config?.signature === 'none' ? [] : [ALL_HEADERS]
  schema.response = {
    '4xx': { description: 'The request has to change before it can succeed', ...ErrorBody },
    '5xx': { description: 'The gateway, or something behind it, failed', ...ErrorBody },
    ...(schema.response as object | undefined),
  }
}
