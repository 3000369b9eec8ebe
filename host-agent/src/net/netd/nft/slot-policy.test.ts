import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { compilePolicy } from '../../policy.ts'
import { MACHINE } from '../../testing/machine.ts'
import { renderSlotPolicy } from './slot-policy.ts'

const SETTINGS = { cidr: '100.64.0.0/16', privateCidrs: ['10.20.0.0/16'], machine: MACHINE }
const BUDGET = { limitBytes: 100, usedBytes: 7 }

const API_AT = (addresses: string[]) => `ip daddr { ${addresses.join(', ')} } tcp dport 8080 goto passed`
const TO_HOST = (apiAt: string[]) => [
  'ip daddr 169.254.1.1 udp dport 53 udp checksum 0 udp dport set 20000 udp checksum set 0 goto dns',
  'ip daddr 169.254.1.1 udp dport 53 udp dport set 20000 goto dns',
  'ip daddr 169.254.1.1 tcp dport 53 tcp dport set 20000 goto dns',
  'ip daddr 169.254.1.1 tcp dport 20003 accept',
  ...(apiAt.length === 0 ? [] : [API_AT(apiAt)]),
  'ip daddr 169.254.1.1 tcp flags & (syn | ack) != syn ip dscp set 3 goto passed',
  'ip daddr 169.254.1.1 meta l4proto icmp ip dscp set 3 goto passed',
  'ip daddr { 169.254.1.1, 192.168.1.5, 198.51.100.130 } return',
]
const TO_SUBNETS = [
  'meta l4proto { tcp, udp } th dport 53 ip daddr { 198.51.100.128/25 } goto dns',
  'ip daddr { 198.51.100.128/25 } return',
]

function chain(name: string, change: Partial<HostVmNetwork>, machine = MACHINE): string[] {
  const policy = compilePolicy({ ...HOST_NETWORK_DEFAULT, ...change }, { ...SETTINGS, machine })
  const text = renderSlotPolicy(policy, BUDGET, false)
  const prefix = `add rule ip warren ${name} `
  return text.split('\n').flatMap((line) => (line.startsWith(prefix) ? line.slice(prefix.length) : []))
}

test('an open policy allows peers and the host, refuses closed ranges and allows everything else', () => {
  const networks = [{ id: 'net-01K0000000000000000000000A', members: [{ ip: '100.64.0.7', name: 'db' }] }]

  assert.deepEqual(chain('egress', { networks }), [
    'ip dscp != 0 ip dscp set 0',
    'ip daddr { 100.64.0.7 } goto direct',
    'ip daddr 100.64.0.0/16 return',
    ...TO_HOST(['169.254.1.1']),
    'meta l4proto { tcp, udp } th dport 53 ip daddr @closed goto dns',
    'ip daddr @closed return',
    ...TO_SUBNETS,
    'meta l4proto { tcp, udp } th dport 53 goto dns',
    'goto direct',
  ])
  assert.deepEqual(chain('ingress', { networks }), [
    'ip saddr 100.64.0.0/16 ip saddr != { 100.64.0.7 } drop',
    'ip saddr 169.254.1.1 udp sport 20000 udp sport set 53',
    'ip saddr 169.254.1.1 tcp sport 20000 tcp sport set 53',
    'ip saddr 169.254.1.1 tcp sport 20003 accept',
    'counter name "in" accept',
  ])
})

test('an allowlist has granted private addresses first, public blocks after the closed ranges and names last', () => {
  const egress = ['10.20.0.9', '10.20.0.8:22', '1.2.3.4', '5.6.0.0/16:443', 'example.com', 'plain.example:80']

  assert.deepEqual(chain('egress', { egress }).slice(1), [
    'ip daddr 100.64.0.0/16 return',
    ...TO_HOST([]),
    'ip daddr { 10.20.0.9/32 } ip dscp set 2 goto direct',
    'meta l4proto { tcp, udp } ip daddr . th dport { 10.20.0.8/32 . 22 } ip dscp set 2 goto direct',
    'meta l4proto { tcp, udp } th dport 53 ip daddr @closed goto dns',
    'ip daddr @closed return',
    ...TO_SUBNETS,
    'ip daddr { 1.2.3.4/32 } goto ruled',
    'meta l4proto { tcp, udp } ip daddr . th dport { 5.6.0.0/16 . 443 } goto ruled',
    'meta l4proto { tcp, udp } th dport 53 goto dns',
    'tcp dport { 80, 443 } ip dscp set 1 goto passed',
  ])
})

test('of the host an allowlist opens the API if a rule names it; everything else is limited to DNS and replies', () => {
  const toHost = (egress: string[], machine = MACHINE) =>
    chain('egress', { egress }, machine).filter((rule) => rule.includes('169.254.1.1'))
  const wide = { ...MACHINE, api: { port: 8080, beyondLoopback: true } }

  assert.deepEqual(toHost(['169.254.1.1:8080']), TO_HOST(['169.254.1.1']))
  assert.deepEqual(toHost(['169.254.1.1']), TO_HOST(['169.254.1.1']))
  assert.deepEqual(toHost(['169.254.1.1:22']), TO_HOST([]))
  assert.deepEqual(toHost(['0.0.0.0/0']), TO_HOST([]))
  assert.deepEqual(toHost([], { ...MACHINE, api: { port: 0, beyondLoopback: false } }), TO_HOST([]))
  assert.ok(chain('egress', { egress: ['198.51.100.130'] }, wide).includes(API_AT(['198.51.100.130'])))
  assert.ok(chain('egress', {}, wide).includes(API_AT(['169.254.1.1', '198.51.100.130'])))
})

test('DNS queries over UDP are limited before they count towards the budget', () => {
  assert.deepEqual(chain('dns', {}), [
    'meta l4proto udp limit rate over 100/second burst 500 packets drop',
    'goto passed',
  ])
})

test('the budget is checked before the counter, and an unmetered sandbox has no budget', () => {
  const bandwidth = { ...HOST_NETWORK_DEFAULT.bandwidth, quota_bytes: -1 }

  assert.deepEqual(chain('passed', {}), ['quota name "budget" drop', 'counter name "out" accept'])
  assert.deepEqual(chain('passed', { bandwidth }), ['counter name "out" accept'])
})

test('a budget is replaced only by a new one; otherwise the kernel keeps its count', () => {
  const policy = compilePolicy(HOST_NETWORK_DEFAULT, SETTINGS)
  const unmetered = { ...policy, quotaBytes: -1 }
  const quotas = (text: string) => text.split('\n').filter((line) => / quota ip/.test(line))

  assert.deepEqual(quotas(renderSlotPolicy(policy, BUDGET, true)), [
    'delete quota ip warren budget',
    'add quota ip warren budget { over 100 bytes used 7 bytes }',
  ])
  assert.deepEqual(quotas(renderSlotPolicy(policy, { limitBytes: 100, usedBytes: 700 }, false)), [
    'add quota ip warren budget { over 100 bytes used 100 bytes }',
  ])
  assert.deepEqual(quotas(renderSlotPolicy(policy, undefined, true)), [])
  assert.deepEqual(quotas(renderSlotPolicy(unmetered, undefined, true)), ['delete quota ip warren budget'])
})
