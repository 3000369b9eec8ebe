import assert from 'node:assert/strict'
import { test } from 'node:test'
import { HOST_NETWORK_DEFAULT } from '@warren/protocol'
import { SlotPool } from './slot-pool.ts'
import { Slots, type SlotsDeps } from './slots.ts'

test('a slot that is kept for an unknown sandbox stays as it was stored, and is not given out again', async () => {
  const removed: (string | number)[] = []
  const stored = [1, 2].map((slot) => ({ slot, ip: `10.0.0.${slot}`, network: HOST_NETWORK_DEFAULT }))
  const netd = { request: async () => ({}) } as unknown as SlotsDeps['netd']
  const log = { warn: assert.fail }
  const pool = new SlotPool({ netd, log }, { size: 0, mtu: 1500, tapOwnerUid: 0 })
  const egressProxy = { setPolicy: async () => {}, removeSandbox: async (ip: string) => void removed.push(ip) }
  const store = { list: async () => stored, write: async () => {}, delete: async (slot: number) => removed.push(slot) }
  const deps = { netd, egressProxy, store, pool, log } as unknown as SlotsDeps
  const slots = await Slots.open(deps, { cidr: '10.0.0.0/24', privateCidrs: [] })

  // The first is stored, of the second nothing is known.
  for (const slot of [1, 3, 1]) slots.keep(slot)
  await slots.restore()

  assert.deepEqual(slots.taken, [1, 3])
  assert.deepEqual(removed, ['10.0.0.2', 2])
})
