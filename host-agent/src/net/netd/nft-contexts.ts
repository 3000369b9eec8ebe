/**
 * nftables contexts of slots whose rules changed a moment ago. Closing a context immediately would block netd for about
 * 10 ms, until the kernel has freed the replaced rules, so contexts are closed a little later. A context keeps its
 * namespace alive: a slot's context is closed before the slot is released.
 */
import { Nft } from '../../ffi/nftables.ts'

/** By then the kernel has freed what a transaction replaced. */
const CLOSE_DELAY_MS = 100

const contexts = new Map<number, { nft: Nft; timer: NodeJS.Timeout }>()

/** Call it in the slot's namespace. */
export function openContext(slot: number): Nft {
  const nft = contexts.get(slot)?.nft ?? new Nft()
  clearTimeout(contexts.get(slot)?.timer)
  contexts.set(slot, { nft, timer: setTimeout(() => closeContext(slot), CLOSE_DELAY_MS) })
  return nft
}

export function closeContext(slot: number): void {
  const context = contexts.get(slot)
  clearTimeout(context?.timer)
  contexts.delete(slot)
  context?.nft[Symbol.dispose]()
}
