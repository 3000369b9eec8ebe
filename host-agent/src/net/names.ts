/**
 * Names and addresses of one Warren in the kernel. Names include the instance (8 hex digits, derived from the data
 * directory), so that two Warrens on one machine, or tests that run in parallel, do not collide.
 */
import { join } from 'node:path'
import { GUEST_HOST } from '@warren/kit/shared-settings'

/** The folder of `ip netns`, so that an operator can inspect the namespaces with the usual tools. */
export const NETNS_FOLDER = '/run/netns'

/** The gateway of every guest. */
export const GUEST_GATEWAY = '172.30.0.1'
/** Of a guest that has booted and belongs to no sandbox yet, and of guests whose agent cannot change their address. */
export const INITIAL_GUEST_ADDRESS = '172.30.0.2'
export const GUEST_PREFIX = 30
/**
 * The address of the host for every sandbox: its gateway, its DNS server, and where the API listens for it. A constant and
 * not an argument, because the processes of the host agent share one environment, and a process never needs a second one.
 */
export const HOST_ADDRESS = GUEST_HOST.read(process.env[GUEST_HOST.name])
/** The public CLI shows the members of a private network as `<member>.<network>.fc.local`. */
export const MEMBER_DOMAIN = 'fc.local'

/** Interfaces inside the namespace of each slot. */
export const TAP = 'tap0'
export const INNER_VETH = 'v0'
/** The same in every guest, so that a clone has nothing to change. Each guest has a network namespace to itself. */
export const GUEST_MAC = '02:00:00:00:00:02'
/** Of both ends of every slot's link to the host. They are known, so that neither end has to ask with ARP. */
export const LINK_MACS = { inner: '02:00:00:00:00:02', outer: '02:00:00:00:00:03' }
/** A veth pair that segments what the guest sends before it is filtered (netd/nft/segment-table.ts). */
export const SEGMENT_VETH = { entry: 'c0', exit: 'c1', exitMac: '02:00:00:00:00:01' }
export const SLOT_TABLE = 'warren'

/** An interface name has at most 15 characters: `w`, the instance and up to six digits. */
export const SLOT_MAX = 999_999

const INSTANCE = /^[0-9a-f]{8}$/

export function checkInstance(instance: string): string {
  if (!INSTANCE.test(instance)) throw new Error(`the instance must be 8 hex digits, not ${JSON.stringify(instance)}`)
  return instance
}

export const netnsName = (instance: string, slot: number): string => `warren-${instance}-${slot}`
export const netnsPath = (instance: string, slot: number): string => join(NETNS_FOLDER, netnsName(instance, slot))

/** The host's end of a slot's veth pair. All slots share a prefix, so that one rule matches them all. */
export const outerVeth = (instance: string, slot: number): string => `${outerVethPrefix(instance)}${slot}`
export const outerVethPrefix = (instance: string): string => `w${instance}`

/** Of any Warren on this machine. */
export const isOuterVeth = (name: string): boolean => /^w[0-9a-f]{8}\d{1,6}$/.test(name)

export const hostTable = (instance: string): string => `warren_${instance}`
export const HOST_TABLE_PREFIX = 'warren_'
/** Of the family inet. */
export const proxyTable = (instance: string): string => `warren_proxy_${instance}`

export const slotOfNetns = (instance: string, name: string): number | undefined =>
  slotAfter(`warren-${instance}-`, name)

export const slotOfVeth = (instance: string, name: string): number | undefined =>
  slotAfter(outerVethPrefix(instance), name)

function slotAfter(prefix: string, name: string): number | undefined {
  if (!name.startsWith(prefix)) return undefined
  const rest = name.slice(prefix.length)
  return /^(0|[1-9][0-9]{0,5})$/.test(rest) ? Number(rest) : undefined
}
