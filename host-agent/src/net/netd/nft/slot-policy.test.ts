import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { compilePolicy } from '../../policy.ts'
import { renderSlotPolicy } from './slot-policy.ts'

const SETTINGS = { cidr: '100.64.0.0/16', privateCidrs: ['10.20.0.0/16'] }
const BUDGET = { limitBytes: 100, usedBytes: 7 }

function chain(name: string, change: Partial<HostVmNetwork>): string[] {
  const text = renderSlotPolicy(compilePolicy({ ...HOST_NETWORK_DEFAULT, ...change }, SETTINGS), BUDGET, false)
  const prefix = `add rule ip warren ${name} `
  return text.split('\n').flatMap((line) => (line.startsWith(prefix) ? line.slice(prefix.length) : []))
}

test('an open policy allows peers and the host, refuses closed ranges and allows everything else', () => {
  const networks = [{ id: 'net-01K0000000000000000000000A', members: [{ ip: '100.64.0.7', name: 'db' }] }]

  assert.deepEqual(chain('egress', { networks }), [
    'ip dscp != 0 ip dscp set 0',
    'ip daddr { 100.64.0.7 } goto direct',
    'ip daddr 100.64.0.0/16 return',
    'ip daddr 169.254.1.1 goto passed',
    'meta l4proto { tcp, udp } th dport 53 ip daddr @closed goto passed',
    'ip daddr @closed return',
    'meta l4proto { tcp, udp } th dport 53 goto passed',
    'goto direct',
  ])
  assert.deepEqual(chain('ingress', { networks }), [
    'ip saddr 100.64.0.0/16 ip saddr != { 100.64.0.7 } drop',
    'counter name "in" accept',
  ])
})

test('an allowlist has granted private addresses first, public blocks after the closed ranges and names last', () => {
  const egress = ['10.20.0.9', '10.20.0.8:22', '1.2.3.4', '5.6.0.0/16:443', 'example.com', 'plain.example:80']

  assert.deepEqual(chain('egress', { egress }).slice(1), [
    'ip daddr 100.64.0.0/16 return',
    'ip daddr 169.254.1.1 tcp flags & (syn | ack) == syn tcp dport != 53 return',
    'ip daddr 169.254.1.1 ip dscp set 3 goto passed',
    'ip daddr { 10.20.0.9/32 } ip dscp set 2 goto direct',
    'meta l4proto { tcp, udp } ip daddr . th dport { 10.20.0.8/32 . 22 } ip dscp set 2 goto direct',
    'meta l4proto { tcp, udp } th dport 53 ip daddr @closed goto passed',
    'ip daddr @closed return',
    'ip daddr { 1.2.3.4/32 } goto ruled',
    'meta l4proto { tcp, udp } ip daddr . th dport { 5.6.0.0/16 . 443 } goto ruled',
    'meta l4proto { tcp, udp } th dport 53 goto passed',
    'tcp dport { 80, 443 } ip dscp set 1 goto passed',
  ])
})

test('of the host an allowlist opens the ports that its rules name; everything else is limited to DNS and replies', () => {
  const toHost = (egress: string[]) => chain('egress', { egress }).filter((rule) => rule.includes('169.254.1.1'))
  const limited = [
    'ip daddr 169.254.1.1 tcp flags & (syn | ack) == syn tcp dport != 53 return',
    'ip daddr 169.254.1.1 ip dscp set 3 goto passed',
  ]

  assert.deepEqual(toHost(['169.254.1.1:8080']), ['ip daddr 169.254.1.1 tcp dport { 8080 } goto passed', ...limited])
  assert.deepEqual(toHost(['169.254.1.1']), ['ip daddr 169.254.1.1 goto passed'])
  assert.deepEqual(toHost(['0.0.0.0/0']), limited)
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
