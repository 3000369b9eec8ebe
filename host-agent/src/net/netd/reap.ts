/**
 * Removes slots that no running VM uses, as after a crash. Safe to repeat. The programs of dead sandboxes must have exited
 * before: a slot whose tap is held is disconnected, but freed only when its program exits.
 */

import type { Released } from '../netd-protocol.ts'
import type { Kernel } from './kernel.ts'
import { listSlots } from './list-slots.ts'
import { releaseSlot } from './slot.ts'

/** Sixty slots take 1 s on an idle machine with two cores and 5 s at a load of 17. */
const FREE_ALL_LIMIT_MS = 30_000

export async function reapAll(kernel: Kernel, except: readonly number[]): Promise<Released[]> {
  const found = listSlots(kernel)
  const unused = found.filter(({ slot }) => !except.includes(slot))
  // In parallel: the kernel frees many namespaces in the time that it needs for one.
  return Promise.all(unused.map(({ slot }) => releaseSlot(kernel, slot, FREE_ALL_LIMIT_MS)))
}
