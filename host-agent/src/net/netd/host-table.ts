/**
 * The host's tables as this netd applied them last, and whether they still are that way. Any other program with the right can
 * change or flush them: `nft flush ruleset` at the start of a firewall's configuration removes the tables of everyone.
 *
 * A check costs a few microseconds while no program changes rules on the machine: the kernel counts transactions. After one,
 * the tables are compared with what they were, by its rules and their handles. A rule that was replaced has another handle.
 */
import { hostTable, proxyTable } from '../names.ts'
import { hasHostTable, hasProxyTable, type Kernel } from './kernel.ts'
import { readGeneration } from './netlink/nft-generation.ts'
import { type HostTable, renderHostTable } from './nft/host-table.ts'
import { type ProxyTable, renderProxyTable } from './nft/proxy-table.ts'

/** `listing` is undefined when another program made a change at the same moment: the next check applies the table again. */
type Applied = { text: string; listing: string | undefined; generation: number; forwardingWasOff: boolean }

/** `removed`: this netd has torn the host down. A check that comes late must not create the table again. */
let applied: Applied | 'removed' | undefined

export type HostTables = { host: HostTable; proxy: ProxyTable }

export function applyHostTables(kernel: Kernel, tables: HostTables): void {
  const text = renderTables(tables)
  const before = readGeneration()
  kernel.nft.run(text)
  const listing = listTables(kernel)
  const generation = readGeneration()
  const isOnlyChange = generation === before + 1
  applied = {
    text,
    listing: isOnlyChange ? listing : undefined,
    generation,
    forwardingWasOff: tables.host.forwardingWasOff,
  }
}

/** `unknown` when another netd applied it. */
export function findHostTableState(kernel: Kernel): 'intact' | 'changed' | 'unknown' | 'removed' {
  if (applied === undefined) return 'unknown'
  if (applied === 'removed') return 'removed'
  if (applied.listing === undefined) return 'changed'
  const generation = readGeneration()
  if (generation === applied.generation) return 'intact'
  if (listTables(kernel) !== applied.listing) return 'changed'
  applied.generation = generation
  return 'intact'
}

/** Whether the tables are those that would be applied now. */
export const areHostTablesCurrent = (tables: HostTables): boolean => findApplied()?.text === renderTables(tables)

/** The table records it, so it is lost when another program flushes the table. */
export const rememberedForwardingWasOff = (): boolean => findApplied()?.forwardingWasOff ?? false

/** Once the table is deleted. */
export function forgetHostTable(): void {
  applied = 'removed'
}

const findApplied = (): Applied | undefined => (applied === 'removed' ? undefined : applied)

const renderTables = ({ host, proxy }: HostTables): string => renderHostTable(host) + renderProxyTable(proxy)

const listTables = (kernel: Kernel): string =>
  [
    ...(hasHostTable(kernel) ? [`table ip ${hostTable(kernel.instance)}`] : []),
    ...(hasProxyTable(kernel) ? [`table inet ${proxyTable(kernel.instance)}`] : []),
  ]
    .map((table) => kernel.nft.listRules(table, { handles: true }))
    .join('\n')
