/**
 * What a sandbox with an allowlist can reach, with real packets. Each attempt is a row, and all outcomes are printed. What
 * the internet of the tests received is checked as well: nothing may reach it that is not allowed.
 */
import assert from 'node:assert/strict'
import { createServer, type Server } from 'node:net'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { Target } from './testing/guest.ts'
import { NAME_SERVER, PRIVATE_HOSTS, PUBLIC_HOST, skipReason, UPLINK } from './testing/host.ts'
import { EVIL, RULED, SHOP, WILD } from './testing/internet-names.ts'
import { ENCRYPTED_CLIENT_HELLO, renderClientHello, toRecords } from './testing/render-client-hello.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const RULES = [
  'shop.example',
  '*.wild.example',
  'plain.example:80',
  'xn--bcher-kva.example',
  'rebind.example',
  'metadata.example',
  'mixed.example',
  'host.example',
  'sandbox.example',
  RULED[0]!,
  `${RULED[1]}:7777`,
  '203.0.113.128/25:80',
  // A private address that the operator has not allowed.
  '10.9.9.9',
  // A private address that the operator has allowed.
  '172.20.0.1:80',
]
const TYPE = { A: 1, NS: 2, NULL: 10, MX: 15, TXT: 16, AAAA: 28, HTTPS: 65, ANY: 255 }

let testNet: TestNetwork
let anna: Sandbox
let api: Server

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ privateCidrs: ['172.20.0.0/16'] })
    api = createServer((socket) => socket.end('host')).listen(8080)
    anna = await testNet.addSandbox('100.64.0.10', withRules(RULES))
    await testNet.addSandbox('100.64.0.11')
  })
  after(async () => {
    api?.close()
    await testNet?.close()
  })
}

const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`
const http = (to: string, ...send: string[]): Target => ({ exchange: to, port: 80, send })
const tls = (to: string, ...send: Buffer[]): Target => ({
  exchange: to,
  port: 443,
  send: send.map((part) => part.toString('latin1')),
})
const clientHello = (name?: string) => Buffer.concat(toRecords(renderClientHello(name)))

type Row = [attempt: string, target: Target, outcome: string | RegExp]
const OK = (address: string, host: string) => new RegExp(`^HTTP/1.1 200 OK.*${address} as ${host}$`, 's')
const FORBIDDEN = /^HTTP\/1\.1 403 Forbidden.*egress refused/s
const ALERT = Buffer.from([21, 3, 3, 0, 2, 2, 112]).toString('latin1')
const DROPPED = 'no answer'

const ROWS: Row[] = [
  ['HTTP to an allowed host', http(SHOP, get('shop.example')), OK(SHOP, 'shop.example')],
  ['the same at a forged address', http(EVIL, get('shop.example')), OK(SHOP, 'shop.example')],
  ['the same at a private address', http('10.9.9.10', get('shop.example')), DROPPED],
  ['another host at the allowed address', http(SHOP, get('evil.example')), FORBIDDEN],
  ['upper case and a last dot', http(SHOP, get('SHOP.Example.')), OK(SHOP, 'SHOP.Example.')],
  ['an IDN in its xn-- form', http(SHOP, get('xn--bcher-kva.example')), OK(SHOP, 'xn--bcher-kva.example')],
  ['an IDN in UTF-8', http(SHOP, get('b\xc3\xbccher.example')), FORBIDDEN],
  ['a subdomain of a plain rule', http(SHOP, get('www.shop.example')), FORBIDDEN],
  ['a name with an allowed suffix', http(SHOP, get('notshop.example')), FORBIDDEN],
  ['a name with an allowed prefix', http(EVIL, get('shop.example.evil.example')), FORBIDDEN],
  ['one level below a wildcard', http(EVIL, get('a.wild.example')), OK(WILD, 'a.wild.example')],
  ['three levels below a wildcard', http(EVIL, get('a.b.c.wild.example')), OK(WILD, 'a.b.c.wild.example')],
  ['the apex of a wildcard', http(WILD, get('wild.example')), FORBIDDEN],
  ['HTTP/1.0 with Host', http(SHOP, 'GET / HTTP/1.0\r\nHost: shop.example\r\n\r\n'), OK(SHOP, 'shop.example')],
  ['HTTP/1.0 without Host', http(SHOP, 'GET / HTTP/1.0\r\n\r\n'), FORBIDDEN],
  ['two Host headers', http(SHOP, 'GET / HTTP/1.1\r\nHost: shop.example\r\nHost: evil.example\r\n\r\n'), FORBIDDEN],
  [
    'an absolute request to the same host',
    http(SHOP, get('shop.example', 'http://shop.example/')),
    OK(SHOP, 'shop.example'),
  ],
  ['an absolute request to another host', http(SHOP, get('shop.example', 'http://evil.example/')), FORBIDDEN],
  ['CONNECT', http(SHOP, 'CONNECT evil.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n'), FORBIDDEN],
  [
    'CONNECT to the allowed host',
    http(SHOP, 'CONNECT shop.example:443 HTTP/1.1\r\nHost: shop.example\r\n\r\n'),
    FORBIDDEN,
  ],
  ['a head in many segments', http(SHOP, ...get('shop.example').match(/.{1,6}/gs)!), OK(SHOP, 'shop.example')],
  [
    'two requests at once, the same host',
    http(SHOP, get('shop.example') + get('shop.example')),
    /(shop\.example.*){2}$/s,
  ],
  [
    'a pipelined second request to another host',
    http(SHOP, get('shop.example') + get('evil.example')),
    /^(?!.*evil).*$/s,
  ],
  ['keep-alive, then another host', http(SHOP, get('shop.example'), get('evil.example')), /^(?!.*as evil).*$/s],
  ['HTTP/2 without TLS', http(SHOP, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), FORBIDDEN],
  [
    'a TLS hello on port 80',
    http(SHOP, clientHello('shop.example').toString('latin1')),
    /^(HTTP\/1\.1 403|closed|no answer)/,
  ],
  ['silence on port 80', http(SHOP), DROPPED],
  ['TLS to an allowed host', tls(SHOP, clientHello('shop.example')), `tls ${SHOP}`],
  ['TLS at a forged address', tls(EVIL, clientHello('shop.example')), `tls ${SHOP}`],
  ['TLS, upper case and a last dot', tls(EVIL, clientHello('ShOp.ExAmPlE.')), `tls ${SHOP}`],
  ['TLS to another host', tls(SHOP, clientHello('evil.example')), ALERT],
  ['TLS without a name', tls(SHOP, clientHello()), ALERT],
  [
    'TLS with an encrypted hello alone',
    tls(SHOP, Buffer.concat(toRecords(renderClientHello(undefined, [ENCRYPTED_CLIENT_HELLO])))),
    ALERT,
  ],
  [
    'an encrypted hello behind another outer name',
    tls(SHOP, Buffer.concat(toRecords(renderClientHello('evil.example', [ENCRYPTED_CLIENT_HELLO])))),
    ALERT,
  ],
  [
    'a hello in records of 3 bytes',
    tls(EVIL, Buffer.concat(toRecords(renderClientHello('shop.example'), 3))),
    `tls ${SHOP}`,
  ],
  [
    'a hello in many records and segments',
    tls(EVIL, ...toRecords(renderClientHello('shop.example'), 11)),
    `tls ${SHOP}`,
  ],
  ['the other host in many records', tls(SHOP, ...toRecords(renderClientHello('evil.example'), 11)), ALERT],
  ['two names in one hello', tls(SHOP, Buffer.concat(toRecords(twoNames('shop.example', 'evil.example')))), ALERT],
  ['TLS to a host that has port 80 only', tls(SHOP, clientHello('plain.example')), ALERT],
  ['HTTP to a host that has port 80 only', http(EVIL, get('plain.example')), OK(SHOP, 'plain.example')],
  ['SSH on port 443', tls(SHOP, Buffer.from('SSH-2.0-x\r\n')), ALERT],
  ['HTTP on port 443', tls(SHOP, Buffer.from(get('shop.example'))), ALERT],
  ['an allowed name that resolves to a private address', http(SHOP, get('rebind.example')), FORBIDDEN],
  ['an allowed name that resolves to the metadata service', http(SHOP, get('metadata.example')), FORBIDDEN],
  ['an allowed name that resolves to this host', http(SHOP, get('host.example')), FORBIDDEN],
  ['an allowed name that resolves to another sandbox', http(SHOP, get('sandbox.example')), FORBIDDEN],
  [
    'an allowed name that resolves to a private and a public address',
    http(EVIL, get('mixed.example')),
    OK(SHOP, 'mixed.example'),
  ],
  ['an allowed address, any port', { tcp: RULED[0]!, port: 80 }, `hello ${UPLINK.address}`],
  // Port 80 is redirected to the proxy, which waits for a name.
  ['an allowed address and port, another port', { tcp: RULED[1]!, port: 80 }, DROPPED],
  ['an allowed block and port', { tcp: RULED[2]!, port: 80 }, `hello ${UPLINK.address}`],
  ['an allowed block, another port', { tcp: RULED[2]!, port: 9000 }, DROPPED],
  ['an address without a rule', { tcp: PUBLIC_HOST, port: 9000 }, DROPPED],
  ['a private address in a rule, not allowed by the operator', { tcp: '10.9.9.9', port: 80 }, DROPPED],
  ['a private address in a rule, allowed by the operator', { tcp: '172.20.0.1', port: 80 }, `hello ${UPLINK.address}`],
  ['the same at another port', { tcp: '172.20.0.1', port: 9000 }, DROPPED],
  ['the metadata service', { tcp: '169.254.169.254', port: 80 }, DROPPED],
  ['the API of this host', { tcp: '169.254.1.1', port: 8080 }, DROPPED],
  ['the API at another address of this host', { tcp: UPLINK.address, port: 8080 }, DROPPED],
  ['another sandbox', { tcp: '100.64.0.11', port: 9000 }, DROPPED],
  ['another sandbox, port 80', { tcp: '100.64.0.11', port: 80 }, DROPPED],
  ['a query for an allowed name', { query: 'shop.example', type: TYPE.A }, `NOERROR ${SHOP}`],
  ['a query in upper case', { query: 'SHOP.EXAMPLE', type: TYPE.A }, `NOERROR ${SHOP}`],
  ['a query over TCP', { query: 'shop.example', type: TYPE.A, overTcp: true }, `NOERROR ${SHOP}`],
  [
    'a query to another name server',
    { query: 'shop.example', type: TYPE.A, server: '203.0.113.77' },
    `NOERROR ${SHOP}`,
  ],
  ['a query for the IPv6 address', { query: 'shop.example', type: TYPE.AAAA }, 'NOERROR'],
  ['a query for the HTTPS record', { query: 'shop.example', type: TYPE.HTTPS }, 'NOERROR'],
  ['a query for a name without a rule', { query: 'evil.example', type: TYPE.A }, 'NXDOMAIN'],
  ['data in a name, TXT', { query: 'c2VjcmV0.t1.evil.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['data in a name, TXT over TCP', { query: 'c2VjcmV0.t2.evil.example', type: TYPE.TXT, overTcp: true }, 'NXDOMAIN'],
  ['data in a name, NULL', { query: 'c2VjcmV0.t3.evil.example', type: TYPE.NULL }, 'NXDOMAIN'],
  ['data in a name, MX', { query: 'c2VjcmV0.t4.evil.example', type: TYPE.MX }, 'NXDOMAIN'],
  ['data in a name, NS', { query: 'c2VjcmV0.t5.evil.example', type: TYPE.NS }, 'NXDOMAIN'],
  ['data in a name, ANY', { query: 'c2VjcmV0.t6.evil.example', type: TYPE.ANY }, 'NXDOMAIN'],
  [
    'data in a name, at a public server',
    { query: 'c2VjcmV0.t7.evil.example', type: TYPE.TXT, server: NAME_SERVER.address },
    'NXDOMAIN',
  ],
  ['below an allowed host', { query: 'c2VjcmV0.t8.shop.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['the apex of a wildcard, TXT', { query: 'wild.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['the root', { query: 'example', type: TYPE.NS }, 'NXDOMAIN'],
  ['QUIC to an allowed host', { udp: SHOP, port: 443, text: 'quic' }, 'sent'],
  ['UDP to an allowed address and port', { udp: RULED[1]!, port: 7777, text: 'ruled' }, 'sent'],
  ['UDP to an allowed address, QUIC', { udp: RULED[0]!, port: 443, text: 'quic-ruled' }, 'sent'],
  ['UDP to any other', { udp: PUBLIC_HOST, port: 7777, text: 'evil' }, 'sent'],
]

test('every attempt has the expected outcome', { skip: skipReason }, async (t) => {
  const outcomes = await anna.guest.probe(...ROWS.map(([, target]) => target))

  const wrong: string[] = []
  for (const [index, [attempt, , expected]] of ROWS.entries()) {
    const got = outcomes[index]!
    const passes = typeof expected === 'string' ? got === expected : expected.test(got)
    t.diagnostic(`${passes ? 'ok  ' : 'BAD '} ${attempt}: ${summary(got)}`)
    if (!passes) wrong.push(`${attempt}: ${JSON.stringify(got)}, not ${expected}`)
  }
  assert.deepEqual(wrong, [])
})

test('the internet received only what the rules allow', { skip: skipReason }, async () => {
  const expected = ['quic-ruled', 'ruled'].map((text) => `${text} from ${UPLINK.address}`)
  await until(
    async () => (await testNet.internet.received()).filter((one) => expected.includes(one)).length === expected.length,
  )
  const allowed = [
    /^http 192\.0\.2\.6 as (shop\.example|SHOP\.Example\.|xn--bcher-kva\.example|plain\.example|mixed\.example)$/,
    /^http 192\.0\.2\.7 as (a|a\.b\.c)\.wild\.example$/,
    /^tls 192\.0\.2\.6$/,
    /^(quic-)?ruled from /,
    /^queried (shop|plain|xn--bcher-kva|rebind|metadata|mixed|host|sandbox)\.example 1$/,
    /^queried (a|a\.b\.c)\.wild\.example 1$/,
  ]

  assert.deepEqual(
    (await testNet.internet.received()).filter((one) => !allowed.some((pattern) => pattern.test(one))),
    [],
  )
})

test('refused attempts are reported with their reason', { skip: skipReason }, async () => {
  const { decisions, flows } = await testNet.network.slots.report(anna.slot)
  const reported = decisions.map(({ via, destination, port, reason }) => `${via} ${destination} ${port} ${reason}`)

  for (const expected of [
    'dns evil.example 53 not_allowed',
    'dns c2vjcmv0.t1.evil.example 53 not_allowed',
    'http evil.example 80 not_allowed',
    'http rebind.example 80 private_address',
    'http host.example 80 private_address',
    'http sandbox.example 80 private_address',
    'http shop.example 80 other_host',
    'http  80 no_server_name',
    'tls evil.example 443 not_allowed',
    'tls  443 no_server_name',
    'tls plain.example 443 not_allowed',
    `packet ${PUBLIC_HOST} 7777 not_allowed`,
    `packet ${SHOP} 443 not_allowed`,
    'packet 169.254.169.254 80 private_address',
    'packet 169.254.1.1 8080 not_allowed',
    'packet 100.64.0.11 80 not_a_peer',
  ]) {
    assert.ok(reported.includes(expected), `${expected} is not in\n${reported.join('\n')}`)
  }
  const reached = flows.map(({ destination, port, protocol }) => `${protocol} ${destination} ${port}`)
  for (const expected of ['tcp shop.example 443', `tcp ${RULED[0]} 80`, `udp ${RULED[1]} 7777`]) {
    assert.ok(reached.includes(expected), `${expected} is not in ${reached}`)
  }
  assert.ok(!reached.some((one) => one.includes('evil')))
})

test('the rule "none" allows nothing, and an empty list allows everything public', { skip: skipReason }, async () => {
  const targets: Target[] = [
    http(EVIL, get('evil.example')),
    tls(SHOP, clientHello('evil.example')),
    { tcp: PUBLIC_HOST, port: 80 },
    { query: 'evil.example', type: TYPE.A },
    ...PRIVATE_HOSTS.map((tcp) => ({ tcp, port: 80 })),
  ]

  await testNet.network.slots.change(anna.slot, withRules(['none'], { revision: 1 }))
  const none = await anna.guest.probe(...targets)
  await testNet.network.slots.change(anna.slot, withRules([], { revision: 2 }))
  const open = await anna.guest.probe(...targets)

  assert.deepEqual(none, [DROPPED, DROPPED, DROPPED, 'NXDOMAIN', ...PRIVATE_HOSTS.map(() => DROPPED)])
  assert.match(open[0]!, OK(EVIL, 'evil.example'))
  assert.deepEqual(open.slice(1, 4), [`tls ${SHOP}`, `hello ${UPLINK.address}`, `NOERROR ${EVIL}`])
  assert.deepEqual(
    open.slice(4),
    PRIVATE_HOSTS.map(() => DROPPED),
  )
})

/** A server name extension with two entries and correct lengths. */
function twoNames(one: string, other: string): Buffer {
  const message = renderClientHello(one)
  const entry = Buffer.concat([Buffer.from([0, 0, other.length]), Buffer.from(other)])
  const whole = Buffer.concat([message, entry])
  const grow = (at: number, bytes: number) => whole.writeUIntBE(whole.readUIntBE(at, bytes) + entry.length, at, bytes)
  const nameAt = message.length - one.length
  grow(1, 3)
  for (const at of [nameAt - 11, nameAt - 7, nameAt - 5]) grow(at, 2)
  return whole
}

const summary = (text: string): string =>
  JSON.stringify(text.split('\r\n')[0] === text ? text : `${text.split('\r\n')[0]} … ${text.split('\r\n').at(-1)}`)
