/**
 * Refuses calls that a foreign web page makes from a browser. Such a page has no credential, but a browser on this machine can
 * reach what others cannot, and the name of the page can be made to resolve to this machine (DNS rebinding). Programs other
 * than browsers send no Origin.
 *
 * The Host header is not consulted: after rebinding it names the foreign page too.
 */
import { failure } from '@warren/kit/failure'
import { isLoopback } from '@warren/kit/shared-settings'
import type { FastifyRequest } from 'fastify'
import type { Config } from '../config.ts'

export type OriginConfig = Pick<Config, 'baseUrl' | 'guestHost' | 'mcpOrigins'>

export function checkOrigin(config: OriginConfig, request: Pick<FastifyRequest, 'headers' | 'socket'>): void {
  const { origin } = request.headers
  if (origin === undefined || isAllowed(config, origin, request.socket.localPort)) return
  throw failure('origin_not_allowed', 'web pages of this origin may not call this route, see WARREN_MCP_ORIGINS')
}

function isAllowed(
  { baseUrl, guestHost, mcpOrigins }: OriginConfig,
  origin: string,
  port: number | undefined,
): boolean {
  if (mcpOrigins.includes(origin)) return true
  if (baseUrl !== undefined && new URL(baseUrl).origin === origin) return true
  const url = URL.parse(origin)
  const isHere = url !== null && (isLoopback(url.hostname.replace(/^\[|\]$/g, '')) || url.hostname === guestHost)
  return isHere && url.protocol === 'http:' && Number(url.port || 80) === port
}
