import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOST_NETWORK_DEFAULT } from '@warren/protocol'
import { SlotPool } from './slot-pool.ts'
import { Slots, type SlotsDeps } from './slots.ts'
import { MACHINE } from './testing/machine.ts'

test('a slot that is kept for an unknown sandbox stays as it was stored, and is not given out again', async () => {
  const removed: (string | number)[] = []
  const stored = [1, 2].map((slot) => ({ slot, ip: `10.0.0.${slot}`, network: HOST_NETWORK_DEFAULT }))
  const netd = { request: async () => ({}) } as unknown as SlotsDeps['netd']
  const log = { warn: assert.fail }
  const pool = new SlotPool({ netd, log }, { size: 0, mtu: 1500, tapOwnerUid: 0, packetsPerSecond: 100_000 })
  const egressProxy = { setPolicy: async () => {}, removeSandbox: async (ip: string) => void removed.push(ip) }
  const store = { list: async () => stored, write: async () => {}, delete: async (slot: number) => removed.push(slot) }
  const deps = { netd, egressProxy, store, pool, log } as unknown as SlotsDeps
  const slots = await Slots.open(deps, { cidr: '10.0.0.0/24', privateCidrs: [], machine: MACHINE })

  // The first is stored, of the second nothing is known.
  for (const slot of [1, 3, 1]) slots.keep(slot)
  await slots.restore()

  assert.deepEqual(slots.taken, [1, 3])
  assert.deepEqual(removed, ['10.0.0.2', 2])
})

test('counters that were just read are not read again, except those of a slot that has another sandbox now', async () => {
  const reads: number[][] = []
  const usageOf = (slot: number) => ({
    slot,
    usage: { quotaBytes: 9, usedBytes: slot, ingressBytes: 0, capped: false },
  })
  const request = async (method: string, { slots = [] as number[] } = {}) => {
    if (method === 'readUsage') reads.push(slots)
    return method === 'readUsage' ? slots.map(usageOf) : { freed: true }
  }
  const netd = { request } as unknown as SlotsDeps['netd']
  const log = { warn: assert.fail }
  const pool = new SlotPool({ netd, log }, { size: 0, mtu: 1500, tapOwnerUid: 0, packetsPerSecond: 100_000 })
  const egressProxy = { setPolicy: async () => {}, removeSandbox: async () => {} }
  const store = { list: async () => [], write: async () => {}, delete: async () => {} }
  const deps = { netd, egressProxy, store, pool, log } as unknown as SlotsDeps
  const slots = await Slots.open(deps, { cidr: '10.0.0.0/24', privateCidrs: [], machine: MACHINE })
  await slots.assign(1, '10.0.0.1')
  await slots.assign(2, '10.0.0.2')

  await slots.usage([1])
  const recent = await slots.recentUsage([1, 2], 60_000)
  await slots.recentUsage([1, 2], 60_000)
  assert.deepEqual(reads, [[1], [2]])
  assert.deepEqual([recent.get(1)?.usage.used_bytes, recent.get(2)?.usage.used_bytes], [1, 2])
  await slots.recentUsage([1], -1)
  assert.deepEqual(reads, [[1], [2], [1]])

  await slots.release(2)
  await slots.assign(2, '10.0.0.3')
  await slots.recentUsage([1, 2], 60_000)
  assert.deepEqual(reads, [[1], [2], [1], [2]])
})
