/**
 * What two programs could read in two ways is refused, so that a sandbox reads what we read: one host, a path, at most
 * one way to tell where the body ends. (Both ways at once, repeated lengths, bare line feeds and folded lines do not pass
 * Node's parser.)
 */
import type { IncomingMessage } from 'node:http'
import type { TLSSocket } from 'node:tls'
import { IngressError } from './error.ts'
import { parseHostname, type Target } from './hostname.ts'

/** Gives the sandbox and port it is for; whether they exist is another question. */
export function validateRequest(request: IncomingMessage, domain: string): Target {
  const { rawHeaders, headers, url = '', method } = request
  const hosts = rawHeaders.filter((name, i) => i % 2 === 0 && name.toLowerCase() === 'host').length
  if (hosts !== 1) throw new IngressError(400, 'A request names one host.')
  if (!url.startsWith('/') && !(method === 'OPTIONS' && url === '*')) {
    throw new IngressError(400, 'A request is for a path.')
  }
  const coding = headers['transfer-encoding']
  if (coding !== undefined && (coding.toLowerCase() !== 'chunked' || request.httpVersion !== '1.1')) {
    throw new IngressError(400, 'This transfer coding is not understood here.')
  }
  const target = parseHostname(headers.host, domain)
  if (target === undefined) throw new IngressError(404, 'Nothing is served here.')
  checkServerName(request, target, domain)
  return target
}

/** An upgrade has no body: what follows its head belongs to the new protocol. */
export function validateUpgrade(request: IncomingMessage, domain: string): Target {
  const { 'content-length': length = '0', 'transfer-encoding': coding } = request.headers
  if (length !== '0' || coding !== undefined) throw new IngressError(400, 'An upgrade takes no body.')
  return validateRequest(request, domain)
}

/** A connection that was opened for one sandbox is not for another. ClientConnections that give no name have nothing to keep to. */
function checkServerName(request: IncomingMessage, target: Target, domain: string): void {
  const { servername } = request.socket as Partial<TLSSocket>
  const opened = typeof servername === 'string' ? parseHostname(servername, domain) : undefined
  if (opened === undefined || (opened.id === target.id && opened.port === target.port)) return
  throw new IngressError(421, 'This connection was opened for another name.')
}
