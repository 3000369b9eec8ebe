import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { EgressDecision, EgressFlow, HostVmNetworkReport } from '@warren/protocol'
import { addFlows, withFlows } from './flows.ts'
import type { SavedFlows } from './record.ts'

const HOUR_MS = 60 * 60_000
const NOW = 100 * HOUR_MS
const flow = (destination: string, count: number): EgressFlow => ({ destination, protocol: 'tcp', port: 443, count })
const saved = (vmm: string, hoursAgo: number, ...flows: EgressFlow[]): SavedFlows => ({
  vmm,
  at: NOW - hoursAgo * HOUR_MS,
  flows,
})
const report = (...flows: EgressFlow[]) => ({ flows, decisions: [] as EgressDecision[] }) as HostVmNetworkReport
const refused = (destination: string, hoursAgo: number, count: number): EgressDecision => ({
  at: new Date(NOW - hoursAgo * HOUR_MS).toISOString(),
  via: 'dns',
  destination,
  protocol: 'udp',
  reason: 'not_allowed',
  count,
})
const countsOf = ({ flows }: { flows: EgressFlow[] }) => flows.map(({ destination, count }) => [destination, count])

test('flows of earlier VMMs are added per destination, the most used first', () => {
  const flows = [saved('one', 3, flow('a.test', 2), flow('b.test', 9)), saved('two', 1, flow('a.test', 5))]

  const seen = withFlows(report(flow('a.test', 1), flow('c.test', 4)), flows, 'three', NOW)

  assert.deepEqual(countsOf(seen), [
    ['b.test', 9],
    ['a.test', 8],
    ['c.test', 4],
  ])
})

test('a VMM resumed from standby is not counted twice, and flows expire after a day', () => {
  const flows = [saved('one', 25, flow('old.test', 1)), saved('two', 1, flow('a.test', 5))]

  assert.deepEqual(countsOf(withFlows(report(flow('a.test', 6)), flows, 'two', NOW)), [['a.test', 6]])
  assert.deepEqual(addFlows(flows, saved('two', 0, flow('a.test', 6))), [saved('two', 0, flow('a.test', 6))])
})

test('a sandbox that is paused very often has a bounded list without losing counts', () => {
  let flows: SavedFlows[] = []
  for (let n = 0; n < 500; n++) flows = addFlows(flows, saved(`vmm-${n}`, 0, flow('a.test', 1)))

  assert.ok(flows.length <= 8)
  assert.deepEqual(countsOf(withFlows(report(), flows, 'none', NOW)), [['a.test', 500]])
})

test('refused destinations of earlier VMMs are kept for a day, with the time of the last attempt, the newest first', () => {
  const flows: SavedFlows[] = [
    { ...saved('one', 20), decisions: [refused('old.test', 25, 1), refused('a.test', 21, 2)] },
    { ...saved('two', 1), decisions: [refused('b.test', 1, 3), refused('a.test', 2, 4)] },
    saved('three', 1, flow('a.test', 1)),
  ]
  const now = { ...report(), decisions: [refused('a.test', 3, 1)] }

  assert.deepEqual(withFlows(now, flows, 'four', NOW).decisions, [refused('b.test', 1, 3), refused('a.test', 2, 7)])
  assert.deepEqual(withFlows(now, flows, 'two', NOW).decisions, [refused('a.test', 3, 3)])
})

test('refused destinations are bounded, however often a sandbox is paused', () => {
  let flows: SavedFlows[] = []
  for (let n = 0; n < 500; n++) {
    const decisions = [refused('a.test', 0, 1), refused(`${n}.test`, 0, 1)]
    flows = addFlows(flows, { ...saved(`vmm-${n}`, 0), decisions })
  }

  assert.ok(flows.every(({ decisions }) => decisions!.length <= 100))
  const kept = withFlows(report(), flows, 'none', NOW).decisions
  assert.ok(kept.length <= 200)
})
