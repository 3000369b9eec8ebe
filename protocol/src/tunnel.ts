/** Tunnels and the shell: how they are opened (spec 4.11). What the shell's client then sends is in shell-frames.ts. */
import { type Static, Type } from 'typebox'

/** The token of the `Upgrade` header, in the request and in the 101. */
export const TUNNEL_UPGRADE = 'tcp-tunnel'

/** A port of the guest that does not answer by then is a 502 (wire 13). */
export const TUNNEL_OPEN_TIMEOUT_MS = 10_000

export const TunnelParams = Type.Object({
  id: Type.String({ description: 'Sandbox id' }),
  port: Type.Integer({ minimum: 1, maximum: 65_535 }),
})
export type TunnelParams = Static<typeof TunnelParams>

/** For clients that cannot set headers. A credential: never logged, and never a sandbox access token (spec 5). */
export const ShellWsQuery = Type.Object({
  token: Type.Optional(Type.String({ description: 'User credential.' })),
  access_token: Type.Optional(Type.String({ description: 'Same as token.' })),
  api_key: Type.Optional(Type.String({ description: 'Same as token.' })),
})
export type ShellWsQuery = Static<typeof ShellWsQuery>

export const shellWsToken = (query: ShellWsQuery): string | undefined =>
  query.token || query.access_token || query.api_key || undefined
