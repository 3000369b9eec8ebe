/** Lists the slots of this instance in the kernel, whichever netd created them. Adoption and reaping start from it. */
import { readdirSync, statfsSync } from 'node:fs'
import { hasCode } from '../../ffi/system-call.ts'
import { NETNS_FOLDER, netnsPath, slotOfNetns, slotOfVeth } from '../names.ts'
import type { FoundSlot } from '../netd-protocol.ts'
import { type Kernel, readLinks, readRoutes } from './kernel.ts'

const NSFS_MAGIC = 0x6e736673

export function listSlots(kernel: Kernel): FoundSlot[] {
  const { instance } = kernel
  const files = namespaceFiles(instance)
  const links = new Map(
    readLinks(kernel).flatMap((link): [number, number][] => {
      const slot = slotOfVeth(instance, link.name)
      return slot === undefined ? [] : [[slot, link.index]]
    }),
  )
  const addresses = new Map(
    readRoutes(kernel)
      .filter((route) => route.prefix === 32)
      .flatMap((route) => route.interfaceIndexes.map((index): [number, string] => [index, route.address])),
  )
  return [...new Set([...files, ...links.keys()])]
    .sort((one, other) => one - other)
    .map((slot) => {
      const index = links.get(slot)
      const ip = index === undefined ? undefined : addresses.get(index)
      const complete = index !== undefined && files.includes(slot) && isMounted(netnsPath(instance, slot))
      return { slot, complete, ...(ip === undefined ? {} : { ip }) }
    })
}

function namespaceFiles(instance: string): number[] {
  try {
    return readdirSync(NETNS_FOLDER).flatMap((name) => slotOfNetns(instance, name) ?? [])
  } catch (error) {
    if (hasCode(error, 'ENOENT')) return []
    throw error
  }
}

/** A killed netd can leave the file of a namespace that was never mounted. */
const isMounted = (path: string): boolean => statfsSync(path).type === NSFS_MAGIC
