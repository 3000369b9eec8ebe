import assert from 'node:assert/strict'
import type { NetworkInterfaceInfo } from 'node:os'
import { test } from 'node:test'
import { contains, overlaps, parseCidr } from '../cidr.ts'
import { outerVeth, SLOT_MAX, slotOfNetns, slotOfVeth } from '../names.ts'
import { checkBlock, checkHostAddress, findUplinks } from './host.ts'
import { type Link, ROUTE_PROTOCOL, type Route } from './netlink/route.ts'

const CIDR = parseCidr('100.64.0.0/16')
const LINKS: Link[] = [
  { index: 1, name: 'lo', mtu: 65_536 },
  { index: 2, name: 'eth0', mtu: 1_500 },
  { index: 3, name: 'wdeadbeef7', mtu: 1_500 },
  { index: 4, name: 'tailscale0', mtu: 1_280 },
]
const route = (text: string, rest: Partial<Route> = {}): Route => {
  const [address = '', prefix] = text.split('/')
  const common = { protocol: 2, scopeLink: false, metric: 0, interfaceIndexes: [2] }
  return { address, prefix: Number(prefix), type: 'unicast', ...common, ...rest }
}

test('a block is parsed strictly and compared with others', () => {
  assert.deepEqual(parseCidr('10.0.0.0/8'), { address: '10.0.0.0', prefix: 8 })
  assert.throws(() => parseCidr('100.64.1.0/16'), /did you mean 100\.64\.0\.0\/16\?/)
  for (const bad of ['100.64.0.0', '100.64.0.0/33', '100.64/16', '::/0', '1.2.3.4/32/1'])
    assert.throws(() => parseCidr(bad))
  assert.equal(contains(parseCidr('0.0.0.0/0'), CIDR), true)
  assert.equal(overlaps(CIDR, parseCidr('100.64.128.0/17')), true)
  assert.equal(overlaps(CIDR, parseCidr('100.65.0.0/16')), false)
})

test('our own routes, the default route and a wider route through a gateway do not conflict', () => {
  const ours = { protocol: ROUTE_PROTOCOL, metric: 0xdeadbeef, interfaceIndexes: [] }
  const routes = [
    route('0.0.0.0/0'),
    route('100.0.0.0/8'),
    route('192.168.0.0/24', { scopeLink: true }),
    route('100.64.0.0/16', { type: 'blackhole', ...ours }),
    route('100.64.0.9/32', { scopeLink: true, protocol: ROUTE_PROTOCOL, interfaceIndexes: [3] }),
  ]

  checkBlock(CIDR, routes, LINKS, 'deadbeef')

  assert.throws(() => checkBlock(CIDR, routes, LINKS, '00000001'), {
    message:
      '100.64.0.0/16 belongs to another Warren on this machine; set another WARREN_SANDBOX_CIDR, ' +
      'or, if that one no longer exists, run: ip route del blackhole 100.64.0.0/16 metric 3735928559',
  })
})

test('a block that overlaps a connected network or contains another route is rejected with its name', () => {
  const inNetwork = [route('100.64.0.0/10', { scopeLink: true, interfaceIndexes: [4] })]
  const inside = [route('100.64.3.0/24')]

  assert.throws(
    () => checkBlock(CIDR, inNetwork, LINKS, 'deadbeef'),
    /overlaps the route to 100\.64\.0\.0\/10 on tailscale0/,
  )
  assert.throws(() => checkBlock(CIDR, inside, LINKS, 'deadbeef'), /overlaps the route to 100\.64\.3\.0\/24 on eth0/)
})

test('an address for sandboxes that another interface has is rejected with its name', () => {
  const interfaceWith = (address: string) => [{ address } as NetworkInterfaceInfo]

  checkHostAddress({
    lo: interfaceWith('169.254.1.1'),
    wdeadbeef7: interfaceWith('169.254.1.1'),
    eth0: interfaceWith('169.254.1.2'),
  })

  assert.throws(() => checkHostAddress({ wlan0: interfaceWith('169.254.1.1') }), {
    message:
      '169.254.1.1, the address of this machine for sandboxes, is already used on wlan0; ' +
      'set another WARREN_GUEST_HOST, such as 169.254.2.1',
  })
})

test('the uplinks are the interfaces of the default routes', () => {
  const routes = [route('0.0.0.0/0', { interfaceIndexes: [2, 4] }), route('10.0.0.0/8', { interfaceIndexes: [3] })]

  assert.deepEqual(
    findUplinks(routes, LINKS).map((link) => link.name),
    ['eth0', 'tailscale0'],
  )
  assert.deepEqual(findUplinks([route('0.0.0.0/0', { type: 'blackhole' })], LINKS), [])
})

test('names fit into 15 characters, and only our own are parsed', () => {
  assert.equal(outerVeth('deadbeef', SLOT_MAX).length, 15)
  assert.equal(slotOfVeth('deadbeef', 'wdeadbeef12'), 12)
  assert.equal(slotOfNetns('deadbeef', 'warren-deadbeef-0'), 0)
  for (const other of ['wdeadbee12', 'wdeadbeef', 'wdeadbeef012', 'wdeadbeef1x']) {
    assert.equal(slotOfVeth('deadbeef', other), undefined)
  }
})
