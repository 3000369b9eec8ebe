/** Headers on their way through: what belongs to one connection stays there, and the sandbox learns who asked. */
import type { IncomingMessage } from 'node:http'
import { BlockList, isIP } from 'node:net'

const HOP_BY_HOP = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
])
/** Ours to say: from a stranger they would be a claim. `Expect` is answered here. */
const REPLACED = new Set(['x-forwarded-for', 'x-forwarded-proto', 'x-forwarded-host', 'forwarded', 'expect'])

/** As names and values in turn, in the order and the case they came in. */
export function passedHeaders(
  raw: readonly string[],
  connection: string | undefined,
  more = new Set<string>(),
): string[] {
  const named = new Set((connection ?? '').split(',').map((name) => name.trim().toLowerCase()))
  const passed: string[] = []
  for (let i = 0; i + 1 < raw.length; i += 2) {
    const name = raw[i]!.toLowerCase()
    if (!HOP_BY_HOP.has(name) && !named.has(name) && !more.has(name)) passed.push(raw[i]!, raw[i + 1]!)
  }
  return passed
}

export function requestHeaders(
  request: IncomingMessage,
  secure: boolean,
  isTrusted: (ip: string) => boolean,
): string[] {
  const { headers, rawHeaders, socket } = request
  const passed = passedHeaders(rawHeaders, headers.connection, REPLACED)
  const address = (socket.remoteAddress ?? '').replace(/^::ffff:/, '')
  const trusted = isTrusted(address)
  const before = trusted && headers['x-forwarded-for'] ? `${headers['x-forwarded-for']}, ` : ''
  const told = (name: string, ours: string) => (trusted ? (headers[name] as string | undefined) : undefined) ?? ours
  passed.push('X-Forwarded-For', before + address)
  passed.push('X-Forwarded-Proto', told('x-forwarded-proto', secure ? 'https' : 'http'))
  passed.push('X-Forwarded-Host', told('x-forwarded-host', headers.host ?? ''))
  if (headers['transfer-encoding'] !== undefined) passed.push('Transfer-Encoding', 'chunked')
  else if (headers['content-length'] === undefined && !BODILESS.has(request.method ?? '')) {
    passed.push('Content-Length', '0')
  }
  return passed
}

/** For these a server expects no body unless it is told of one. */
const BODILESS = new Set(['GET', 'HEAD', 'DELETE', 'OPTIONS', 'TRACE', 'CONNECT'])

export function trustedBy(proxies: readonly string[]): (ip: string) => boolean {
  const list = new BlockList()
  for (const proxy of proxies) {
    const [address = '', prefix] = proxy.split('/')
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (isIP(address) === 0) continue
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  return (ip) => isIP(ip) !== 0 && list.check(ip, isIP(ip) === 6 ? 'ipv6' : 'ipv4')
}
