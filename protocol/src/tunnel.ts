/** Opening tunnels and the shell. The frames that a shell client sends are in shell-frames.ts. */
import { type Static, Type } from 'typebox'

/** Value of the `Upgrade` header in the request and in the 101 response. */
export const TUNNEL_UPGRADE = 'tcp-tunnel'

/** After this time without a connection to the port of the guest the response is a 502. */
export const TUNNEL_OPEN_TIMEOUT_MS = 10_000

export const TunnelParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
})
export type TunnelParams = Static<typeof TunnelParams>

/** For clients that cannot set headers. It is a credential and never logged. Sandbox access tokens are not accepted. */
export const ShellWsQuery = Type.Object({
  token: Type.Optional(Type.String({ description: 'API key or session token of the user.' })),
  access_token: Type.Optional(Type.String({ description: 'Alias of `token`.' })),
  api_key: Type.Optional(Type.String({ description: 'Alias of `token`.' })),
})
export type ShellWsQuery = Static<typeof ShellWsQuery>

export const shellWsToken = (query: ShellWsQuery): string | undefined =>
  query.token || query.access_token || query.api_key || undefined
