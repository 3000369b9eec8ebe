import assert from 'node:assert/strict'
import { test } from 'node:test'
import type { EgressFlow, HostVmNetworkReport } from '@warren/protocol'
import { addFlows, type SavedFlows, withFlows } from './flows.ts'

const HOUR_MS = 60 * 60_000
const NOW = 100 * HOUR_MS
const flow = (destination: string, count: number): EgressFlow => ({ destination, protocol: 'tcp', port: 443, count })
const kept = (body: string, hoursAgo: number, ...flows: EgressFlow[]): SavedFlows => ({
  body,
  at: NOW - hoursAgo * HOUR_MS,
  flows,
})
const report = (...flows: EgressFlow[]) => ({ flows }) as HostVmNetworkReport
const places = ({ flows }: { flows: EgressFlow[] }) => flows.map(({ destination, count }) => [destination, count])

test('what was reached before a pause counts on, place by place, the most used first', () => {
  const flows = [kept('one', 3, flow('a.test', 2), flow('b.test', 9)), kept('two', 1, flow('a.test', 5))]

  const seen = withFlows(report(flow('a.test', 1), flow('c.test', 4)), { flows }, 'three', NOW)

  assert.deepEqual(places(seen), [
    ['b.test', 9],
    ['a.test', 8],
    ['c.test', 4],
  ])
})

test('a body that goes on with its slot is not counted twice, and after a day it is forgotten', () => {
  const flows = [kept('one', 25, flow('old.test', 1)), kept('two', 1, flow('a.test', 5))]

  assert.deepEqual(places(withFlows(report(flow('a.test', 6)), { flows }, 'two', NOW)), [['a.test', 6]])
  assert.deepEqual(addFlows(flows, kept('two', 0, flow('a.test', 6))), [kept('two', 0, flow('a.test', 6))])
})

test('a sandbox that is paused all day keeps a bounded list that misses nothing', () => {
  let flows: SavedFlows[] = []
  for (let n = 0; n < 500; n++) flows = addFlows(flows, kept(`body-${n}`, 0, flow('a.test', 1)))

  assert.ok(flows.length <= 8)
  assert.deepEqual(places(withFlows(report(), { flows }, 'none', NOW)), [['a.test', 500]])
})
