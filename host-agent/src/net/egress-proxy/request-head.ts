/**
 * Parses the head of an HTTP/1 request (RFC 9112), more strictly than servers have to: input that two programs could parse
 * differently is refused, because the server behind the proxy would be the second program.
 */
import type { EgressRefusal } from '@warren/protocol'
import { normaliseHostName } from './host-name.ts'

export type RequestHead = {
  host: string
  body: { kind: 'none' } | { kind: 'length'; bytes: number } | { kind: 'chunked' }
  /** The request asks for a WebSocket. */
  upgrades: boolean
}
export type BadHead = { refusal: EgressRefusal }

const REQUEST_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e]+) HTTP\/1\.([01])$/
const HEADER_LINE = /^([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t\x20-\x7e\x80-\xff]*?)[ \t]*$/
const BAD: BadHead = { refusal: 'bad_request' }

/** `text` is everything before the empty line, with one character per byte. */
export function parseRequestHead(text: string, port: number): RequestHead | BadHead {
  const [first = '', ...lines] = text.split('\r\n')
  const request = REQUEST_LINE.exec(first)
  if (request === null) return BAD
  const [, method = '', target = '', minor] = request
  const headers = new Map<string, string[]>()
  for (const line of lines) {
    const header = HEADER_LINE.exec(line)
    if (header === null) return BAD
    const [, name = '', value = ''] = header
    const values = headers.get(name.toLowerCase())
    if (values) values.push(value)
    else headers.set(name.toLowerCase(), [value])
  }

  const hosts = headers.get('host') ?? []
  if (hosts.length === 0 || hosts[0] === '') return { refusal: 'no_server_name' }
  const host = hosts.length === 1 ? parseAuthority(hosts[0]!, port) : undefined
  if (host === undefined || !targetsHost(method, target, host, port)) return BAD
  const body = parseBody(headers, minor === '1')
  if (body === undefined) return BAD
  const upgrades =
    method === 'GET' && body.kind === 'none' && headers.get('upgrade')?.join().toLowerCase() === 'websocket'
  return { host, body, upgrades }
}

/** The authority is a name, with or without the port of the connection. */
function parseAuthority(authority: string, port: number): string | undefined {
  const [name = '', portText, ...more] = authority.split(':')
  if (more.length > 0 || (portText !== undefined && portText !== '' && portText !== `${port}`)) return undefined
  return normaliseHostName(name)
}

/** Some servers prefer an absolute URL in the request line to the Host header, so both must name the same host. */
function targetsHost(method: string, target: string, host: string, port: number): boolean {
  if (method === 'CONNECT') return false
  if (target.startsWith('/') || (target === '*' && method === 'OPTIONS')) return true
  const authority = /^http:\/\/([^/?#]+)(?:[/?].*)?$/i.exec(target)?.[1]
  return authority !== undefined && parseAuthority(authority, port) === host
}

function parseBody(headers: Map<string, string[]>, allowsChunks: boolean): RequestHead['body'] | undefined {
  const lengths = headers.get('content-length')
  const codings = headers.get('transfer-encoding')
  if (codings) {
    const isChunked = codings.length === 1 && codings[0]!.toLowerCase() === 'chunked'
    return isChunked && allowsChunks && !lengths ? { kind: 'chunked' } : undefined
  }
  if (!lengths) return { kind: 'none' }
  if (lengths.length > 1 || !/^\d{1,15}$/.test(lengths[0]!)) return undefined
  return lengths[0] === '0' ? { kind: 'none' } : { kind: 'length', bytes: Number(lengths[0]) }
}
