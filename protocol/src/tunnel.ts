/** Opening tunnels and the shell. The frames that a shell client sends are in shell-frames.ts. */
import { type Static, Type } from 'typebox'
import { Timestamp } from './ids.ts'

/** Value of the `Upgrade` header in the request and in the 101 response. */
export const TUNNEL_UPGRADE = 'tcp-tunnel'

/** After this time without a connection to the port of the guest the response is a 502. */
export const TUNNEL_OPEN_TIMEOUT_MS = 10_000

export const TunnelParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
})
export type TunnelParams = Static<typeof TunnelParams>

export const SHELL_TICKET_SECONDS = 60
/** A client that cannot set headers sends the ticket as a WebSocket subprotocol with this prefix, or in the query. */
export const SHELL_TICKET_PROTOCOL = 'warren.ticket.'

export const ShellTicketView = Type.Object({
  ticket: Type.String({ description: 'Opens one shell in this sandbox.' }),
  expires_at: Timestamp,
})
export type ShellTicketView = Static<typeof ShellTicketView>

/** For clients that cannot set headers. It is a credential and never logged. Sandbox access tokens are not accepted. */
export const ShellWsQuery = Type.Object({
  ticket: Type.Optional(Type.String({ description: 'One-time ticket, from `POST …/shell-ticket`.' })),
  token: Type.Optional(
    Type.String({
      description: 'API key or session token of the user. Deprecated: proxies may log it.',
      deprecated: true,
    }),
  ),
  access_token: Type.Optional(Type.String({ description: 'Alias of `token`.' })),
  api_key: Type.Optional(Type.String({ description: 'Alias of `token`.' })),
})
export type ShellWsQuery = Static<typeof ShellWsQuery>

/** `protocols` is the value of Sec-WebSocket-Protocol. */
export function shellWsTicket(query: ShellWsQuery, protocols: string | undefined): string | undefined {
  const offered = (protocols ?? '').split(',').map((protocol) => protocol.trim())
  const protocol = offered.find((name) => name.startsWith(SHELL_TICKET_PROTOCOL))
  return query.ticket || protocol?.slice(SHELL_TICKET_PROTOCOL.length) || undefined
}

export const shellWsToken = (query: ShellWsQuery): string | undefined =>
  query.token || query.access_token || query.api_key || undefined
