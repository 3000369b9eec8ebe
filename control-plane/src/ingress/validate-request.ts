/**
 * Rejects requests that two programs could interpret differently, so that the sandbox reads exactly what the ingress
 * reads: one host, an absolute path, and at most one way to find the end of the body. (Node's parser already rejects
 * Content-Length together with Transfer-Encoding, repeated lengths, bare line feeds and folded headers.)
 */
import type { IncomingMessage } from 'node:http'
import type { TLSSocket } from 'node:tls'
import { IngressError } from './error.ts'
import { parseHostname, type Target } from './hostname.ts'

/** Returns the sandbox and port that the request is for. It does not check whether they exist. */
export function validateRequest(request: IncomingMessage, domain: string): Target {
  const { rawHeaders, headers, url = '', method } = request
  const hosts = rawHeaders.filter((name, i) => i % 2 === 0 && name.toLowerCase() === 'host').length
  if (hosts !== 1) throw new IngressError(400, 'A request must have exactly one Host header.')
  if (!url.startsWith('/') && !(method === 'OPTIONS' && url === '*')) {
    throw new IngressError(400, 'The request target must be an absolute path.')
  }
  const coding = headers['transfer-encoding']
  if (coding !== undefined && (coding.toLowerCase() !== 'chunked' || request.httpVersion !== '1.1')) {
    throw new IngressError(400, 'This transfer coding is not supported.')
  }
  const target = parseHostname(headers.host, domain)
  if (target === undefined) throw new IngressError(404, 'Nothing is served here.')
  checkServerName(request, target, domain)
  return target
}

/** An upgrade request has no body: the bytes after its head belong to the new protocol. */
export function validateUpgrade(request: IncomingMessage, domain: string): Target {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers
  if (length !== '0' || coding !== undefined) throw new IngressError(400, 'An upgrade request cannot have a body.')
  return validateRequest(request, domain)
}

/** A TLS connection that was opened for one sandbox cannot be used for another. Without a server name there is no check. */
function checkServerName(request: IncomingMessage, target: Target, domain: string): void {
  const { servername } = request.socket as Partial<TLSSocket>
  const opened = typeof servername === 'string' ? parseHostname(servername, domain) : undefined
  if (opened === undefined || (opened.id === target.id && opened.port === target.port)) return
  throw new IngressError(421, 'This connection was opened for another host name.')
}
