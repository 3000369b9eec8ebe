/**
 * MCP over streamable HTTP. Many MCP clients can send no credential header other than Authorization, so it is accepted
 * here.
 */
import { Readable } from 'node:stream'
import type { ReadableStream } from 'node:stream/web'
import type { FastifyReply, FastifyRequest } from 'fastify'
import type { Deps } from '../deps.ts'
import { LARGE_JSON_BODY_MAX_BYTES } from '../http/body.ts'
import { callerDisconnected } from '../http/caller-disconnected.ts'
import type { App } from '../http/server.ts'
import { checkOrigin } from './check-origin.ts'

export function mcpRoutes(app: App, deps: Deps, version: string): void {
  const serve = async (request: FastifyRequest, reply: FastifyReply) => {
    const body = request.method === 'POST' ? request.body : undefined
    // Loaded by the first request, because its packages take long and many instances serve no model.
    const { serveMcp } = await import('./server.ts')
    const from = { caller: request.caller, requestId: request.id }
    const response = await serveMcp(deps, version, from, toRequest(request, callerDisconnected(reply)), body)
    reply.code(response.status)
    for (const [name, value] of response.headers) reply.header(name, value)
    return reply.send(response.body ? Readable.fromWeb(response.body as ReadableStream) : '')
  }
  const options = {
    config: { access: 'token', credentialIn: 'bearer' },
    exposeHeadRoute: false,
    onRequest: async (request: FastifyRequest) => checkOrigin(deps.config, request),
    bodyLimit: LARGE_JSON_BODY_MAX_BYTES,
    // Not part of the OpenAPI document: MCP clients read the list of tools instead.
    schema: { hide: true },
  } as const
  app.post('/mcp', options, serve)
  app.get('/mcp', options, serve)
  app.delete('/mcp', options, serve)
}

/**
 * Builds the request for the MCP library. The body is already parsed and the caller is authenticated, so no credential
 * is passed on.
 */
function toRequest(request: FastifyRequest, signal: AbortSignal): Request {
  const headers = new Headers({ 'content-type': 'application/json' })
  for (const [name, value] of Object.entries(request.headers)) {
    const isForwarded = name === 'accept' || name === 'last-event-id' || name.startsWith('mcp-')
    if (isForwarded && typeof value === 'string') headers.set(name, value)
  }
  return new Request('http://warren/mcp', { method: request.method, headers, signal })
}
