/**
 * Rejects requests that two programs could interpret differently, so that the server behind reads exactly what the proxy
 * reads: one host, an absolute path, and at most one way to find the end of the body. (Node's parser already rejects
 * Content-Length together with Transfer-Encoding, repeated lengths, bare line feeds and folded headers.)
 */
import type { IncomingMessage } from 'node:http'
import type { TLSSocket } from 'node:tls'
import type { Backend } from './backend.ts'
import { ProxyError } from './error.ts'

type Hosts<Target> = Pick<Backend<Target, unknown>, 'parseHost' | 'keyOf'>

/** Returns what the request is for. It does not check whether that exists. */
export function validateRequest<Target>(request: IncomingMessage, hosts: Hosts<Target>): Target {
  const { rawHeaders, headers, url = '', method } = request
  const hostHeaders = rawHeaders.filter((name, i) => i % 2 === 0 && name.toLowerCase() === 'host').length
  if (hostHeaders !== 1) throw new ProxyError(400, 'A request must have exactly one Host header.')
  if (!url.startsWith('/') && !(method === 'OPTIONS' && url === '*')) {
    throw new ProxyError(400, 'The request target must be an absolute path.')
  }
  const coding = headers['transfer-encoding']
  if (coding !== undefined && (coding.toLowerCase() !== 'chunked' || request.httpVersion !== '1.1')) {
    throw new ProxyError(400, 'This transfer coding is not supported.')
  }
  const target = hosts.parseHost(headers.host)
  if (target === undefined) throw new ProxyError(404, 'Nothing is served here.')
  checkServerName(request, target, hosts)
  return target
}

/** An upgrade request has no body: the bytes after its head belong to the new protocol. */
export function validateUpgrade<Target>(request: IncomingMessage, hosts: Hosts<Target>): Target {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers
  if (length !== '0' || coding !== undefined) throw new ProxyError(400, 'An upgrade request cannot have a body.')
  return validateRequest(request, hosts)
}

/** A TLS connection that was opened for one host cannot be used for another. Without a server name there is no check. */
function checkServerName<Target>(request: IncomingMessage, target: Target, hosts: Hosts<Target>): void {
  const { servername } = request.socket as Partial<TLSSocket>
  const opened = typeof servername === 'string' ? hosts.parseHost(servername) : undefined
  if (opened === undefined || hosts.keyOf(opened) === hosts.keyOf(target)) return
  throw new ProxyError(421, 'This connection was opened for another host name.')
}
