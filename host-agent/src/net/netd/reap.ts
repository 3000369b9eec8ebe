/**
 * Removes what belongs to nobody: after a crash, the slots that no living VM uses. Takes back in any order and as often
 * as asked. End the programs of dead sandboxes first: a slot whose tap is held is cut off, but freed only with them.
 */

import type { Released } from '../netd-protocol.ts'
import { removeHost } from './host.ts'
import type { Kernel } from './kernel.ts'
import { listSlots } from './list-slots.ts'
import { releaseSlot } from './slot.ts'

/** Sixty take 1 s on a quiet machine of two cores and 5 s on one with a load of 17. */
const FREE_ALL_LIMIT_MS = 30_000

export async function reapAll(kernel: Kernel, except: readonly number[]): Promise<Released[]> {
  const found = listSlots(kernel)
  const lost = found.filter(({ slot }) => !except.includes(slot))
  // All at once: the kernel frees many namespaces in the time it takes for one.
  return Promise.all(lost.map(({ slot }) => releaseSlot(kernel, slot, FREE_ALL_LIMIT_MS)))
}

export async function tearDownHost(kernel: Kernel): Promise<Released[]> {
  const released = await reapAll(kernel, [])
  removeHost(kernel)
  return released
}
