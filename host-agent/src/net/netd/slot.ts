/**
 * A slot is the network of one sandbox: a namespace with a tap for the guest and a veth pair to the host. It is created
 * ahead of time without an address, claimed with one, and never used twice.
 *
 *   guest  eth0 100.64.x.y/32 ── tap0 172.30.0.1/30 │ v0 ── w<instance><slot> 169.254.1.1/32  host
 *                                   └─ c0 ── c1 ─┘ the slot's namespace
 *
 * The namespace routes the sandbox's address to the tap. A guest that cannot take it (nft/slot-table.ts) keeps 172.30.0.2,
 * and v0 has the sandbox's address.
 *
 * What the guest sends goes from tap0 through the pair c0 and c1, which segments it (nft/segment-table.ts), before it is
 * filtered.
 *
 * netd may be killed at any line. The namespace gets its name first, and everything else belongs to the namespace, so a
 * slot that was created partly is found and reaped.
 */
import { existsSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { disableSegmentationOffload } from '../../ffi/ethtool.ts'
import { removeNamespace } from '../../ffi/network-namespace.ts'
import { Nft } from '../../ffi/nftables.ts'
import { interfaceIndex } from '../../ffi/socket.ts'
import { hasCode } from '../../ffi/system-call.ts'
import { createTap } from '../../ffi/tap.ts'
import {
  GUEST_GATEWAY,
  GUEST_MAC,
  GUEST_PREFIX,
  HOST_ADDRESS,
  INNER_VETH,
  LINK_MACS,
  netnsPath,
  outerVeth,
  SEGMENT_VETH,
  SLOT_MAX,
  SLOT_TABLE,
  TAP,
} from '../names.ts'
import type { Released, SlotClaim, SlotSettings } from '../netd-protocol.ts'
import { disableIpv6, type Kernel, readRoutes } from './kernel.ts'
import { deleteFlowsFrom } from './netlink/conntrack.ts'
import { addElements } from './netlink/nft-elements.ts'
import {
  addAddress,
  addDefaultRoute,
  addLinkRoute,
  addNeighbour,
  createVeth,
  deleteLink,
  deleteLinkRoute,
  getLink,
  parseReceivedPackets,
  setLinkUp,
} from './netlink/route.ts'
import { NetlinkSocket } from './netlink/socket.ts'
import { renderSegmentTable } from './nft/segment-table.ts'
import { renderSlotPolicy } from './nft/slot-policy.ts'
import { ownerElements, renderOwner, renderSlotTable } from './nft/slot-table.ts'
import { closeContext, openContext } from './nft-contexts.ts'
import { readCounts } from './slot-report.ts'

/** The kernel frees namespaces in the background, after tens of milliseconds, or longer on a loaded machine. */
const FREE_LIMIT_MS = 5_000
const FREE_POLL_MS = 4

export function createSlot(kernel: Kernel, settings: SlotSettings): void {
  const { slot } = settings
  if (!Number.isInteger(slot) || slot < 0 || slot > SLOT_MAX) throw new Error(`${slot} is not a slot number`)
  const path = netnsPath(kernel.instance, slot)
  const outer = outerVeth(kernel.instance, slot)
  if (existsSync(path) || interfaceIndex(outer) !== 0) throw new Error(`slot ${slot} already exists`)
  try {
    kernel.host.create(path, () => setUpNamespace(kernel, outer, settings))
    disableIpv6(outer)
    const index = interfaceIndex(outer)
    kernel.routes.change(`set up ${outer}`, setLinkUp(index), addAddress(index, HOST_ADDRESS, 32))
  } catch (error) {
    removeNamespace(path)
    throw new Error(`failed to create slot ${slot}`, { cause: error })
  }
}

/** Runs inside the new namespace. */
function setUpNamespace(
  kernel: Kernel,
  outer: string,
  { mtu, tapOwnerUid, packetsPerSecond, policy }: SlotSettings,
): void {
  disableIpv6('all')
  disableIpv6('default')
  writeFileSync('/proc/sys/net/ipv4/ip_forward', '1')
  using nft = new Nft()
  const rules = policy && renderSlotPolicy(policy, { limitBytes: policy.quotaBytes, usedBytes: 0 }, false)
  nft.run(renderSlotTable() + (rules ?? ''))
  createTap(TAP, tapOwnerUid)
  using routes = new NetlinkSocket()
  const macs = { mac: LINK_MACS.inner, peerMac: LINK_MACS.outer }
  const peer = { name: INNER_VETH, peerName: outer, peerNetnsFd: kernel.host.fd, mtu, ...macs }
  const segment = { name: SEGMENT_VETH.entry, peerName: SEGMENT_VETH.exit, peerMac: SEGMENT_VETH.exitMac, mtu }
  routes.change(`create ${outer}`, createVeth(peer), createVeth(segment))
  disableSegmentationOffload(SEGMENT_VETH.entry)
  nft.run(renderSegmentTable(packetsPerSecond))
  // The guest's packets arrive on the exit of the pair, but the route back to it is the tap. The kernel must not take
  // them for spoofed; spoofed source addresses are dropped by the table.
  for (const name of ['all', SEGMENT_VETH.exit]) writeFileSync(`/proc/sys/net/ipv4/conf/${name}/rp_filter`, '0')
  const tap = interfaceIndex(TAP)
  const inner = interfaceIndex(INNER_VETH)
  routes.change(
    `set up the namespace of ${outer}`,
    setLinkUp(interfaceIndex(SEGMENT_VETH.exit)),
    setLinkUp(tap, mtu),
    addAddress(tap, GUEST_GATEWAY, GUEST_PREFIX),
    addNeighbour(inner, HOST_ADDRESS, LINK_MACS.outer),
    addLinkRoute(inner, HOST_ADDRESS),
    addDefaultRoute(inner, HOST_ADDRESS),
  )
}

/**
 * Gives the slot its address, its rules and its counters in one transaction. The route to it is added last, so the rules
 * apply to every packet. When this fails, release the slot: it may be claimed partly.
 */
export function claimSlot(kernel: Kernel, claim: SlotClaim): void {
  const { instance, host, routes } = kernel
  const { slot, ip, guestAddress } = claim
  const outer = interfaceIndex(outerVeth(instance, slot))
  if (outer === 0) throw new Error(`slot ${slot} does not exist`)
  host.enter(netnsPath(instance, slot), () => {
    if (claim.isPrepared) addElements(SLOT_TABLE, ownerElements(claim))
    else replaceRules(claim)
    using inside = new NetlinkSocket()
    const tap = interfaceIndex(TAP)
    inside.change(
      `give slot ${slot} the address ${ip}`,
      guestAddress === ip ? addLinkRoute(tap, ip) : addAddress(interfaceIndex(INNER_VETH), ip, 32),
      addNeighbour(tap, guestAddress, GUEST_MAC),
    )
  })
  try {
    routes.change(`route ${ip} to slot ${slot}`, addLinkRoute(outer, ip), addNeighbour(outer, ip, LINK_MACS.inner))
  } catch (error) {
    if (hasCode(error, 'EEXIST')) throw new Error(`${ip} belongs to another slot`, { cause: error })
    throw error
  }
}

/** For a claim with other rules than the slot was created with, or with counters above 0. Runs in its namespace. */
function replaceRules({ slot, policy, usedBytes, ingressBytes, ...owner }: SlotClaim): void {
  const budget = { limitBytes: policy.quotaBytes, usedBytes }
  const hasQuota = readCounts().quota !== undefined
  const rules = renderSlotPolicy(policy, budget, hasQuota, { usedBytes, ingressBytes })
  openContext(slot).run(`${rules}\n${renderOwner(owner)}`)
}

/** Safe to repeat, and for a slot that was created partly. The program that holds the tap must have exited. */
export async function releaseSlot(kernel: Kernel, slot: number, limitMs = FREE_LIMIT_MS): Promise<Released> {
  const { instance, routes } = kernel
  closeContext(slot)
  const name = outerVeth(instance, slot)
  const outer = interfaceIndex(name)
  const addresses = outer === 0 ? [] : listAddresses(kernel, outer)
  for (const ip of addresses) routes.change(`remove the route to ${ip}`, deleteLinkRoute(outer, ip))
  removeNamespace(netnsPath(instance, slot))
  // Before the address is assigned again. The kernel searches its whole table of flows, which takes ten milliseconds.
  if (addresses.length > 0 && mayHaveSent(kernel, outer)) for (const ip of addresses) deleteFlowsFrom(ip)
  if (await isFreed(name, limitMs)) return { slot, freed: true }

  // A process holds the tap. Without its link the namespace reaches nothing, and the number of the slot can be reused.
  try {
    routes.change(`delete ${name}`, deleteLink(interfaceIndex(name)))
    return { slot, freed: false }
  } catch (error) {
    // The kernel was slow and has freed the namespace by now.
    if (interfaceIndex(name) === 0) return { slot, freed: true }
    throw error
  }
}

/**
 * False if nothing has come out of the slot. Then the host has no flow that begins there: it makes one for the first packet that
 * it receives. Read after the program that holds the tap has exited, and as late as the search for flows would begin.
 */
function mayHaveSent({ routes }: Kernel, outer: number): boolean {
  try {
    return parseReceivedPackets(routes.get('read the counters of a link', getLink(outer))) !== 0n
  } catch (error) {
    if (hasCode(error, 'ENODEV')) return true // The kernel has freed the namespace already, and the counters with it.
    throw error
  }
}

const listAddresses = (kernel: Kernel, outer: number): string[] =>
  readRoutes(kernel)
    .filter((route) => route.prefix === 32 && route.interfaceIndexes.includes(outer))
    .map((route) => route.address)

/** The host's end of the pair disappears when the kernel frees the namespace. */
async function isFreed(name: string, limitMs: number): Promise<boolean> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await sleep(FREE_POLL_MS)) {
    if (interfaceIndex(name) === 0) return true
  }
  return interfaceIndex(name) === 0
}
