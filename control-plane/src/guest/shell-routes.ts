import { ok, SandboxParams, ShellTicketView, ShellWsQuery, success, TunnelParams } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { loadOwnSandbox } from '../http/load-own-sandbox.ts'
import type { App } from '../http/server.ts'
import { createShellTicket } from './shell-tickets.ts'
import { openShellWebSocket } from './shell-ws.ts'
import { openTunnel } from './tunnel.ts'

export function shellRoutes(app: App, deps: Deps): void {
  const tags = ['shell and tunnels']
  const preValidation = loadOwnSandbox(deps)
  const response = { 101: { description: 'Switching protocols', type: 'null' } }

  app.post(
    '/v1/sandboxes/:id/tunnel/:port',
    {
      config: { access: 'token' },
      preValidation,
      schema: {
        summary: 'Open a tunnel to a TCP port of the sandbox (Upgrade: tcp-tunnel)',
        tags,
        params: TunnelParams,
        response,
      },
    },
    async (request, reply) => {
      await openTunnel(deps, request, reply, { route: 'tunnel', query: { port: String(request.params.port) } })
      return reply
    },
  )

  app.post(
    '/v1/sandboxes/:id/shell',
    {
      config: { access: 'token' },
      preValidation,
      schema: {
        summary: 'Open a login shell (Upgrade: tcp-tunnel). The client sends frames, the server sends terminal output',
        tags,
        params: SandboxParams,
        response,
      },
    },
    async (request, reply) => {
      await openTunnel(deps, request, reply, { route: 'shell' })
      return reply
    },
  )

  app.post(
    '/v1/sandboxes/:id/shell-ticket',
    {
      config: { access: 'token' },
      preValidation,
      schema: {
        summary: 'Create a ticket that opens one shell as a WebSocket within a minute, for browsers',
        tags,
        params: SandboxParams,
        response: { 200: success(ShellTicketView) },
      },
    },
    async (request) => ok(await createShellTicket(deps, request.caller, request.sandbox.id)),
  )

  app.get(
    '/v1/sandboxes/:id/shell-ws',
    {
      config: { access: 'token', credentialIn: 'query' },
      preValidation,
      exposeHeadRoute: false,
      schema: {
        summary: 'Open a login shell as a WebSocket with binary messages',
        tags,
        params: SandboxParams,
        querystring: ShellWsQuery,
        response,
      },
    },
    async (request, reply) => {
      await openShellWebSocket(deps, request, reply)
      return reply
    },
  )
}
