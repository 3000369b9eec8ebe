import assert from 'node:assert/strict'
import { test } from 'node:test'
import { renderHostTable } from './host-table.ts'
import { renderOwner, renderSlotTable } from './slot-table.ts'

const TABLE = {
  instance: 'deadbeef',
  cidr: '100.64.0.0/16',
  uplinks: ['eth0'],
  subnets: ['198.51.100.128/25'],
  egressProxy: { dns: 20_000, http: 20_001, tls: 20_002 },
  s3Port: 20_003,
  api: { port: 8080, beyondLoopback: false },
  limits: { flows: 4096, newFlowsPerSecond: 200 },
  forwardingWasOff: false,
}
const rules = (text: string, chain: string): string[] => {
  const body = text.split(`  chain ${chain} {`)[1]!.split('\n  }')[0]!
  return body.split('\n').flatMap((line) => line.trim() || [])
}

test('packets are forwarded between sandboxes, to granted blocks and to public addresses', () => {
  const forward = rules(renderHostTable(TABLE), 'forward').map((rule) => rule.replaceAll('"wdeadbeef*"', 'veths'))

  assert.deepEqual(forward.slice(3), [
    'iifname veths oifname veths accept',
    'iifname veths oifname { "eth0" } ip dscp 2 ip dscp set 0 accept',
    'iifname veths oifname { "eth0" } ip dscp 1 drop',
    'iifname veths oifname { "eth0" } ip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 168.63.129.16/32, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, 198.18.0.0/15, 224.0.0.0/3, 198.51.100.128/25 } drop',
    'iifname veths oifname { "eth0" } accept',
    'iifname { "eth0" } oifname veths ct state established,related accept',
    'iifname veths drop',
    'oifname veths drop',
  ])
})

test('the connections of each sandbox are limited before they are redirected or forwarded', () => {
  assert.deepEqual(rules(renderHostTable(TABLE), 'limits'), [
    'type filter hook prerouting priority mangle; policy accept;',
    'iifname "wdeadbeef*" ct state new update @new_flows { ip saddr limit rate over 200/second burst 1000 packets } drop',
    'iifname "wdeadbeef*" ct state new add @flows { ip saddr ct count over 4096 } drop',
  ])
})

test('all DNS queries are redirected to our server and marked packets to the proxy, except between peers', () => {
  const dstnat = rules(renderHostTable(TABLE), 'dstnat').map((rule) => rule.replaceAll('iifname "wdeadbeef*" ', ''))

  assert.deepEqual(dstnat.slice(1), [
    'ip dscp 2 return',
    'ip daddr 100.64.0.0/16 return',
    'udp dport 53 dnat to 169.254.1.1:20000',
    'tcp dport 53 dnat to 169.254.1.1:20000',
    'ip dscp 1 tcp dport 80 dnat to 169.254.1.1:20001',
    'ip dscp 1 tcp dport 443 dnat to 169.254.1.1:20002',
  ])
})

test('of the host a sandbox reaches replies, DNS, the S3 proxy and the API, and nothing else', () => {
  const open = rules(renderHostTable(TABLE), 'input')
  const closed = rules(renderHostTable({ ...TABLE, api: { port: 0, beyondLoopback: false } }), 'input')
  const wide = rules(renderHostTable({ ...TABLE, api: { port: 8080, beyondLoopback: true } }), 'input')

  assert.deepEqual(open.slice(1, 8), [
    'iifname "wdeadbeef*" ct state established,related accept',
    'iifname "wdeadbeef*" ip daddr 169.254.1.1 udp dport 20000 accept',
    'iifname "wdeadbeef*" ip daddr 169.254.1.1 tcp dport { 20000, 20001, 20002 } accept',
    'iifname "wdeadbeef*" ip daddr 169.254.1.1 tcp dport 20003 accept',
    'iifname "wdeadbeef*" ip dscp 3 drop',
    'iifname "wdeadbeef*" ip daddr 169.254.1.1 tcp dport 8080 accept',
    'iifname "wdeadbeef*" drop',
  ])
  assert.deepEqual(closed.slice(1, 7), open.toSpliced(6, 1).slice(1, 7))
  assert.deepEqual(wide, open.with(6, 'iifname "wdeadbeef*" tcp dport 8080 accept'))
})

test('the address of the host for sandboxes is closed to every network around the machine', () => {
  const input = rules(renderHostTable(TABLE), 'input')

  assert.deepEqual(input.slice(8), [
    'iifname != "lo" ip daddr 169.254.1.1 meta l4proto { tcp, udp } th dport { 20000, 20001, 20002, 20003, 8080 } drop',
    'iifname { "eth0" } ip daddr 169.254.1.1 drop',
  ])
})

test('without an uplink nothing is masqueraded or forwarded', () => {
  const text = renderHostTable({ ...TABLE, uplinks: [] })

  assert.doesNotMatch(text, /masquerade|oifname \{/)
  assert.match(text, /iifname "wdeadbeef\*" drop/)
})

test('an interface name cannot contain quotes', () => {
  assert.throws(() => renderHostTable({ ...TABLE, uplinks: ['e"; drop'] }), /not supported for an uplink/)
})

test('a slot forwards only packets of its guest, with the address from its claim', () => {
  assert.match(renderSlotTable(), /iifname "tap0" drop\n *iifname "c1" ip saddr != @owned drop/)
  assert.match(renderSlotTable(), /iifname "c1" oifname "v0" ip saddr @owned jump egress/)
  assert.equal(
    renderOwner({ ip: '100.64.0.1', guestAddress: '100.64.0.1' }),
    'add element ip warren owned { 100.64.0.1 }\nadd element netdev warren arp_senders { 100.64.0.1 }',
  )
  assert.equal(
    renderOwner({ ip: '100.64.0.1', guestAddress: '172.30.0.2' }),
    'add element ip warren addresses { 100.64.0.1 : 172.30.0.2, 172.30.0.2 : 100.64.0.1 }\n' +
      'add element ip warren owned { 172.30.0.2 }\nadd element netdev warren arp_senders { 172.30.0.2 }',
  )
})
