/**
 * The host's table as this netd applied it last, and whether it still is that way. Any other program with the right can
 * change or flush it: `nft flush ruleset` at the start of a firewall's configuration removes the tables of everyone.
 *
 * A check costs a few microseconds while no program changes rules on the machine: the kernel counts transactions. After one,
 * the table is compared with what it was, by its rules and their handles. A rule that was replaced has another handle.
 */
import { hostTable } from '../names.ts'
import { hasHostTable, type Kernel } from './kernel.ts'
import { readGeneration } from './netlink/nft-generation.ts'
import { type HostTable, renderHostTable } from './nft/host-table.ts'

/** `listing` is undefined when another program made a change at the same moment: the next check applies the table again. */
type Applied = { text: string; listing: string | undefined; generation: number; forwardingWasOff: boolean }

/** `removed`: this netd has torn the host down. A check that comes late must not create the table again. */
let applied: Applied | 'removed' | undefined

export function applyHostTable(kernel: Kernel, table: HostTable): void {
  const text = renderHostTable(table)
  const before = readGeneration()
  kernel.nft.run(text)
  const listing = listTable(kernel)
  const generation = readGeneration()
  const isOnlyChange = generation === before + 1
  applied = { text, listing: isOnlyChange ? listing : undefined, generation, forwardingWasOff: table.forwardingWasOff }
}

/** `unknown` when another netd applied it. */
export function findHostTableState(kernel: Kernel): 'intact' | 'changed' | 'unknown' | 'removed' {
  if (applied === undefined) return 'unknown'
  if (applied === 'removed') return 'removed'
  if (applied.listing === undefined) return 'changed'
  const generation = readGeneration()
  if (generation === applied.generation) return 'intact'
  if (listTable(kernel) !== applied.listing) return 'changed'
  applied.generation = generation
  return 'intact'
}

/** Whether the table is the one that would be applied now. */
export const isHostTableCurrent = (table: HostTable): boolean => findApplied()?.text === renderHostTable(table)

/** The table records it, so it is lost when another program flushes the table. */
export const rememberedForwardingWasOff = (): boolean => findApplied()?.forwardingWasOff ?? false

/** Once the table is deleted. */
export function forgetHostTable(): void {
  applied = 'removed'
}

const findApplied = (): Applied | undefined => (applied === 'removed' ? undefined : applied)

const listTable = (kernel: Kernel): string =>
  hasHostTable(kernel) ? kernel.nft.listRules(`table ip ${hostTable(kernel.instance)}`, { handles: true }) : ''
