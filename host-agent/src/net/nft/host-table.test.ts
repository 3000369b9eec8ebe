import assert from 'node:assert/strict'
import { test } from 'node:test'
import { renderCloseEgress, renderHostTable, renderOpenEgress } from './host-table.ts'
import { renderSlotAddress, renderSlotTable } from './slot-table.ts'

const TABLE = {
  instance: 'deadbeef',
  cidr: '100.64.0.0/16',
  uplinks: ['eth0'],
  dnsPort: 20_000,
  apiPorts: [8080],
  forwardingWasOff: false,
}
const rules = (text: string, chain: string): string[] => {
  const body = text.split(`  chain ${chain} {`)[1]!.split('\n  }')[0]!
  return body.split('\n').flatMap((line) => line.trim() || [])
}

test('what a sandbox reaches: first the pairs and rules, then not the private ranges, then the world', () => {
  const forward = rules(renderHostTable(TABLE), 'forward').map((rule) => rule.replaceAll('"wdeadbeef*"', 'ours'))

  assert.deepEqual(forward.slice(3), [
    'iifname ours oifname ours ip saddr . ip daddr @pairs accept',
    'iifname ours oifname ours drop',
    'iifname ours oifname { "eth0" } ip saddr . ip daddr @rule_ip accept',
    'iifname ours oifname { "eth0" } meta l4proto { tcp, udp } ip saddr . ip daddr . th dport @rule_ipport accept',
    'iifname ours oifname { "eth0" } ip daddr { 0.0.0.0/8, 10.0.0.0/8, 100.64.0.0/10, 127.0.0.0/8, 169.254.0.0/16, 172.16.0.0/12, 192.0.0.0/24, 192.168.0.0/16, 224.0.0.0/3 } drop',
    'iifname ours oifname { "eth0" } ip saddr @open accept',
    'iifname { "eth0" } oifname ours ct state established,related accept',
    'iifname ours drop',
    'oifname ours drop',
  ])
})

test('of the host: answers, names, the API, and nothing after that', () => {
  const open = rules(renderHostTable(TABLE), 'input')
  const closed = rules(renderHostTable({ ...TABLE, apiPorts: [] }), 'input')

  assert.deepEqual(open.slice(1, 5), [
    'iifname "wdeadbeef*" ct state established,related accept',
    'iifname "wdeadbeef*" meta l4proto { tcp, udp } th dport 20000 ip daddr 169.254.1.1 accept',
    'iifname "wdeadbeef*" tcp dport { 8080 } accept',
    'iifname "wdeadbeef*" drop',
  ])
  assert.deepEqual(closed, open.toSpliced(3, 1))
})

test('without an uplink nothing is masqueraded and nothing leaves', () => {
  const text = renderHostTable({ ...TABLE, uplinks: [] })

  assert.doesNotMatch(text, /masquerade|@open accept/)
  assert.match(text, /iifname "wdeadbeef\*" drop/)
})

test('the sets are declared, never emptied: replacing the rules keeps the elements', () => {
  const text = renderHostTable(TABLE)

  for (const set of ['open', 'byname', 'pairs', 'rule_ip', 'rule_ipport'])
    assert.match(text, new RegExp(`set ${set} {`))
  assert.doesNotMatch(text, /(flush|delete) (table|set)|flush ruleset/)
})

test('an interface name cannot end the quotes', () => {
  assert.throws(() => renderHostTable({ ...TABLE, uplinks: ['e"; drop'] }), /odd characters/)
})

test('an address enters the open set and leaves all sets', () => {
  assert.equal(renderOpenEgress('deadbeef', '100.64.0.1'), 'add element ip warren_deadbeef open { 100.64.0.1 }')
  assert.equal(
    renderCloseEgress('deadbeef', ['100.64.0.1', '100.64.0.2']),
    ['add', 'delete']
      .map((verb) => `${verb} element ip warren_deadbeef open { 100.64.0.1, 100.64.0.2 }`)
      .concat(['add', 'delete'].map((verb) => `${verb} element ip warren_deadbeef byname { 100.64.0.1, 100.64.0.2 }`))
      .join('\n'),
  )
})

test('a slot lets only its guest out, under the address it gets when it is claimed', () => {
  assert.match(renderSlotTable(), /iifname "tap0" ip saddr != 172\.30\.0\.2 drop/)
  assert.equal(
    renderSlotAddress('100.64.0.1'),
    'add element ip warren addresses { 100.64.0.1 : 172.30.0.2, 172.30.0.2 : 100.64.0.1 }',
  )
})
