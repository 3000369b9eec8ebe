/** Webhooks must not reach what only this machine can reach, however the receiver's URL spells it. */
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { createServer, type RequestListener } from 'node:http'
import type { AddressInfo } from 'node:net'
import { after, test } from 'node:test'
import { createAddressPolicy } from '@warren/kit/outbound/addresses'
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { checkWebhookUrl } from '@warren/protocol'
import { createSender, NOT_ALLOWED } from './send.ts'

async function listenOn(host: string, handler: RequestListener, port = 0): Promise<number> {
  const server = createServer(handler)
  server.listen(port, host)
  await once(server, 'listening')
  after(() => {
    server.closeAllConnections()
    server.close()
  })
  return (server.address() as AddressInfo).port
}

/** A service on this machine that must never be reached. */
let reached = 0
const countReach: RequestListener = (_request, response) => {
  reached++
  response.end()
}
const port = await listenOn('127.0.0.1', countReach)
await listenOn('::1', countReach, port).catch(() => {}) // Not every machine has IPv6.

/** DNS of the test. A name with several lists gives the next one at each lookup. */
const NAMES: Record<string, string[][]> = {
  'private.example.com': [['10.0.0.1']],
  'loopback.example.com': [['127.0.0.1']],
  'mixed.example.com': [['93.184.215.14', '127.0.0.1']],
  'six.example.com': [['::1']],
  'mapped.example.com': [['::ffff:127.0.0.1']],
  'nat64.example.com': [['64:ff9b::7f00:1']],
  'metadata.example.com': [['169.254.169.254']],
  // The system's resolver follows a CNAME, and gives its addresses under the first name.
  'cname-to-internal.example.com': [['192.168.1.10']],
  'scoped.example.com': [['fe80::1%eth0']],
  'empty.example.com': [[]],
  localhost: [['127.0.0.1', '::1']],
}
const lookups: string[] = []
const resolve: NonNullable<Parameters<typeof createOutboundGuard>[1]> = (host, done) => {
  lookups.push(host)
  const lists = NAMES[host]
  if (!lists) return done(Object.assign(new Error('not found'), { code: 'ENOTFOUND' }), [])
  const addresses = lists.length > 1 ? lists.shift()! : lists[0]!
  done(
    null,
    addresses.map((address) => ({ address, family: address.includes(':') ? 6 : 4 })),
  )
}

const targets = createOutboundGuard([], resolve)
const sender = createSender(targets, 2_000)
after(() => sender.close())
const send = (url: string, allowLoopback = false, by = sender) =>
  by.send({ url, secret: 'whsec_x', allowLoopback, delivery: 'd', action: 'webhook.test', body: '{}' }, new Date())

const HOSTS = {
  'IPv4 loopback': '127.0.0.1',
  'another IPv4 loopback address': '127.8.9.1',
  'decimal IPv4': '2130706433',
  'octal IPv4': '0177.0.0.1',
  'hexadecimal IPv4': '0x7f000001',
  'mixed notation': '0x7f.1',
  'short IPv4': '127.1',
  'any address': '0.0.0.0',
  'zero as a number': '0',
  'IPv4 with a final dot': '127.0.0.1.',
  'full-width digits': '１２７.０.０.１',
  'percent-encoded digits': '%31%32%37.0.0.1',
  'private 10/8': '10.1.2.3',
  'private 172.16/12': '172.31.255.1',
  'private 192.168/16': '192.168.0.1',
  'shared address space, also of sandboxes': '100.64.0.1',
  'metadata of Alibaba Cloud': '100.100.100.200',
  'metadata of most clouds': '169.254.169.254',
  'metadata of Oracle Cloud': '192.0.0.192',
  'services of Azure': '168.63.129.16',
  'address of the API for sandboxes': '169.254.1.1',
  benchmarking: '198.18.0.1',
  documentation: '203.0.113.7',
  multicast: '224.0.0.1',
  broadcast: '255.255.255.255',
  'IPv6 loopback': '[::1]',
  'IPv6 any address': '[::]',
  'IPv4-mapped IPv6': '[::ffff:127.0.0.1]',
  'IPv4-mapped IPv6 in hexadecimal': '[::ffff:7f00:1]',
  'IPv4-mapped private address': '[::ffff:10.0.0.1]',
  'IPv4-compatible IPv6': '[::127.0.0.1]',
  'IPv4 behind NAT64': '[64:ff9b::10.0.0.1]',
  'IPv4 behind local NAT64': '[64:ff9b:1::a00:1]',
  '6to4 of a private address': '[2002:a00:1::1]',
  Teredo: '[2001:0:a00:1::1]',
  'IPv6 link-local': '[fe80::1]',
  'IPv6 unique local': '[fd12:3456::1]',
  'metadata of AWS over IPv6': '[fd00:ec2::254]',
  'IPv6 multicast': '[ff02::1]',
  'IPv6 documentation': '[2001:db8::1]',
  'name of a private address': 'private.example.com',
  'name of loopback': 'loopback.example.com',
  'name with a public and a loopback address': 'mixed.example.com',
  'name of IPv6 loopback': 'six.example.com',
  'name of a mapped address': 'mapped.example.com',
  'name of an address behind NAT64': 'nat64.example.com',
  'name of the metadata service': 'metadata.example.com',
  'CNAME to an internal name': 'cname-to-internal.example.com',
  'name of a link-local address with a zone': 'scoped.example.com',
  'name without an address': 'empty.example.com',
  localhost: 'localhost',
}

for (const [what, host] of Object.entries(HOSTS)) {
  test(`not sent to: ${what} (${host})`, async () => {
    const url = `http://${host}:${port}/`
    assert.equal(checkWebhookUrl(url), undefined, 'the URL itself is well-formed')

    assert.equal(await send(url), NOT_ALLOWED)
    assert.equal(await send(url.replace('http:', 'https:')), NOT_ALLOWED)
    assert.equal(await targets.isAllowedNow(new URL(url), false), false)
    assert.equal(reached, 0)
  })
}

test('a URL with credentials, without a host or with another scheme is refused', () => {
  for (const url of [
    'http://user:password@example.com/',
    'http://127.0.0.1@example.com/',
    'http://example.com@127.0.0.1/',
    'file:///etc/passwd',
    'gopher://127.0.0.1/',
    'http://',
    '//example.com',
    `https://example.com/${'a'.repeat(3000)}`,
  ]) {
    assert.equal(typeof checkWebhookUrl(url), 'string', url)
  }
})

test('a name that changes its address after the check is refused', async () => {
  NAMES['rebind.example.com'] = [['93.184.215.14'], ['127.0.0.1']]
  const url = `http://rebind.example.com:${port}/`

  assert.equal(await targets.isAllowedNow(new URL(url), false), true)
  assert.equal(await send(url), NOT_ALLOWED)
  assert.equal(reached, 0)
})

test('the connection goes to the address that was checked, with one lookup', async () => {
  let allowed = 0
  const port = await listenOn('127.0.0.7', (_request, response) => {
    allowed++
    response.end()
  })
  await listenOn('127.0.0.8', countReach, port)
  NAMES['once.example.com'] = [['127.0.0.7'], ['127.0.0.8'], ['127.0.0.8']]
  const opened = createSender(createOutboundGuard(['127.0.0.7/32'], resolve))
  lookups.length = 0

  assert.equal(await send(`http://once.example.com:${port}/`, false, opened), undefined)

  assert.deepEqual([allowed, reached, lookups.length], [1, 0, 1])
  opened.close()
})

test('a redirect is a failure and is not followed', async () => {
  const redirecting = await listenOn('127.0.0.9', (request, response) => {
    const status = Number(request.url!.slice(1))
    response.writeHead(status, { location: `http://127.0.0.1:${port}/` }).end()
  })
  const opened = createSender(createOutboundGuard(['127.0.0.9/32'], resolve))

  for (const status of [301, 302, 303, 307, 308]) {
    const error = await send(`http://127.0.0.9:${redirecting}/${status}`, false, opened)
    assert.equal(error, `HTTP ${status}: redirects are not followed`)
  }
  assert.equal(reached, 0)
  opened.close()
})

test('only a little of a response body is read', async () => {
  let written = 0
  const endless = await listenOn('127.0.0.10', (_request, response) => {
    const more = () => {
      while (!response.destroyed && response.write(Buffer.alloc(65_536))) written += 65_536
    }
    response.on('drain', more)
    more()
  })
  const opened = createSender(createOutboundGuard(['127.0.0.10/32'], resolve))

  assert.equal(await send(`http://127.0.0.10:${endless}/`, false, opened), undefined)

  opened.close()
  assert.ok(written < 32 * 2 ** 20, `${written} bytes`)
})

test('public addresses are allowed, and blocks that the operator has opened', () => {
  const { isAllowed } = createAddressPolicy(['10.20.0.0/16', 'fd00:1::/32'])

  for (const address of ['93.184.215.14', '8.8.8.8', '2606:4700::1111', '64:ff9b::808:808', '::ffff:8.8.8.8']) {
    assert.equal(isAllowed(address, false), true, address)
  }
  for (const address of ['10.20.1.1', '::ffff:10.20.1.1', 'fd00:1::5']) {
    assert.equal(isAllowed(address, false), true, address)
  }
  assert.equal(isAllowed('10.21.0.1', false), false)
  assert.equal(isAllowed('not an address', true), false)
})

test('a public address of this machine is treated like loopback', () => {
  const own = () => ['198.41.0.4', '2606:4700::4']
  const { isAllowed } = createAddressPolicy([], own)

  for (const address of ['198.41.0.4', '2606:4700::4', '::ffff:198.41.0.4', '2606:4700:0::4']) {
    assert.deepEqual([isAllowed(address, true), isAllowed(address, false)], [true, false], address)
  }
  assert.equal(isAllowed('198.41.0.5', false), true)
  assert.equal(createAddressPolicy(['198.41.0.4/32'], own).isAllowed('198.41.0.4', false), true)
})

test('loopback is allowed only where the caller may use it, and other private addresses are not', () => {
  const { isAllowed } = createAddressPolicy([])

  for (const address of ['127.0.0.1', '::1', '::ffff:127.0.0.1']) {
    assert.deepEqual([isAllowed(address, true), isAllowed(address, false)], [true, false], address)
  }
  assert.equal(isAllowed('10.0.0.1', true), false)
  assert.equal(isAllowed('169.254.169.254', true), false)
})
