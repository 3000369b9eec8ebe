/**
 * What things of one Warren are called in the kernel. Every name carries the instance (8 hex digits, derived by the
 * caller from its data directory), so two Warrens on one machine, or tests that run side by side, never meet.
 */
import { join } from 'node:path'

/** Where `ip netns` looks as well, so an operator sees the namespaces with the usual tools. */
export const NETNS_FOLDER = '/run/netns'

/** The same in every guest, so a clone needs no change. */
export const GUEST_ADDRESS = '172.30.0.2'
export const GUEST_GATEWAY = '172.30.0.1'
export const GUEST_PREFIX = 30
/** The host as every sandbox sees it: its gateway and its resolver. */
export const HOST_ADDRESS = '169.254.1.1'
/** `<member>.<network>.fc.local`: under this name the public CLI shows each member of a network. */
export const MEMBER_DOMAIN = 'fc.local'

/** Inside each namespace. */
export const TAP = 'tap0'
export const INNER_VETH = 'v0'
/** A pair that what the guest sends goes through first: it leaves the exit as single packets (netd/nft/segment-table.ts). */
export const CUT = { entry: 'c0', exit: 'c1', exitMac: '02:00:00:00:00:01' }
export const SLOT_TABLE = 'warren'

/** An interface name has at most 15 characters: `w`, the instance, and up to six digits. */
export const SLOT_MAX = 999_999

const INSTANCE = /^[0-9a-f]{8}$/

export function checkInstance(instance: string): string {
  if (!INSTANCE.test(instance)) throw new Error(`the instance must be 8 hex digits, not ${JSON.stringify(instance)}`)
  return instance
}

export const netnsName = (instance: string, slot: number): string => `warren-${instance}-${slot}`
export const netnsPath = (instance: string, slot: number): string => join(NETNS_FOLDER, netnsName(instance, slot))

/** The host's end of a slot's pair; with the same prefix for all slots, so one rule names them all. */
export const outerVeth = (instance: string, slot: number): string => `${outerVethPrefix(instance)}${slot}`
export const outerVethPrefix = (instance: string): string => `w${instance}`

export const hostTable = (instance: string): string => `warren_${instance}`
export const HOST_TABLE_PREFIX = 'warren_'

export const slotOfNetns = (instance: string, name: string): number | undefined =>
  slotAfter(`warren-${instance}-`, name)

export const slotOfVeth = (instance: string, name: string): number | undefined =>
  slotAfter(outerVethPrefix(instance), name)

function slotAfter(prefix: string, name: string): number | undefined {
  if (!name.startsWith(prefix)) return undefined
  const rest = name.slice(prefix.length)
  return /^(0|[1-9][0-9]{0,5})$/.test(rest) ? Number(rest) : undefined
}
