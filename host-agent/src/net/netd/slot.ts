/**
 * A slot is a place for one sandbox in the network: a namespace with a tap for the guest and a pair of links to the
 * host. It is made ahead of time without an address, claimed with one, and never used twice.
 *
 *   guest  eth0 172.30.0.2/30 ── tap0 172.30.0.1/30 │ v0 100.64.x.y/32 ── w<instance><slot> 169.254.1.1/32  host
 *                                   └─ c0 ── c1 ─┘ the slot's namespace
 *
 * What the guest sends goes from tap0 through the cut, c0 to c1 (nft/segment-table.ts), before it is judged.
 *
 * netd may be killed at any line: the namespace has its name from the first moment, so what was half made is found
 * and reaped, and everything else hangs on the namespace.
 */
import { existsSync, writeFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import {
  CUT,
  GUEST_GATEWAY,
  GUEST_PREFIX,
  HOST_ADDRESS,
  INNER_VETH,
  netnsPath,
  outerVeth,
  SLOT_MAX,
  SLOT_TABLE,
  TAP,
} from '../names.ts'
import type { Released, SlotClaim, SlotSettings } from '../netd-protocol.ts'
import { contextOf, letGo } from './change-policy.ts'
import { disableIpv6, type Kernel, readRoutes } from './kernel.ts'
import { hasCode, interfaceIndex } from './libc.ts'
import { removeNamespace } from './namespace.ts'
import { deleteFlowsFrom } from './netlink/conntrack.ts'
import { addElements } from './netlink/nft-elements.ts'
import {
  addAddress,
  addDefaultRoute,
  addLinkRoute,
  createVeth,
  deleteLink,
  deleteLinkRoute,
  setLinkUp,
} from './netlink/route.ts'
import { NetlinkSocket } from './netlink/socket.ts'
import { Nft } from './nft/nft.ts'
import { renderCutTable } from './nft/segment-table.ts'
import { renderSlotPolicy } from './nft/slot-policy.ts'
import { ownerElements, renderOwner, renderSlotTable } from './nft/slot-table.ts'
import { takeSinglePackets } from './offload.ts'
import { readCounts } from './slot-report.ts'
import { createTap } from './tap.ts'

/** The kernel frees namespaces in the background, some tens of milliseconds later; on a loaded machine more. */
const FREE_LIMIT_MS = 5_000
const FREE_POLL_MS = 4

export function createSlot(kernel: Kernel, settings: SlotSettings): void {
  const { slot } = settings
  if (!Number.isInteger(slot) || slot < 0 || slot > SLOT_MAX) throw new Error(`${slot} is no slot number`)
  const path = netnsPath(kernel.instance, slot)
  const outer = outerVeth(kernel.instance, slot)
  if (existsSync(path) || interfaceIndex(outer) !== 0) throw new Error(`slot ${slot} exists already`)
  try {
    kernel.host.create(path, () => furnish(kernel, outer, settings))
    disableIpv6(outer)
    const index = interfaceIndex(outer)
    kernel.routes.change(`set up ${outer}`, setLinkUp(index), addAddress(index, HOST_ADDRESS, 32))
  } catch (error) {
    removeNamespace(path)
    throw new Error(`could not create slot ${slot}`, { cause: error })
  }
}

/** Inside the new namespace. */
function furnish(kernel: Kernel, outer: string, { mtu, tapOwnerUid, policy }: SlotSettings): void {
  disableIpv6('all')
  disableIpv6('default')
  writeFileSync('/proc/sys/net/ipv4/ip_forward', '1')
  using nft = new Nft()
  const rules = policy && renderSlotPolicy(policy, { limitBytes: policy.quotaBytes, usedBytes: 0 }, false)
  nft.run(renderSlotTable() + (rules ?? ''))
  createTap(TAP, tapOwnerUid)
  using routes = new NetlinkSocket()
  const peer = { name: INNER_VETH, peerName: outer, peerNetnsFd: kernel.host.fd, mtu }
  const cut = { name: CUT.entry, peerName: CUT.exit, peerMac: CUT.exitMac, mtu }
  routes.change(`create ${outer}`, createVeth(peer), createVeth(cut))
  takeSinglePackets(CUT.entry)
  nft.run(renderCutTable())
  // The way back to the guest is the tap, not where its packets come from: the kernel must not take that for a forgery.
  // Forged senders are dropped by the table.
  for (const name of ['all', CUT.exit]) writeFileSync(`/proc/sys/net/ipv4/conf/${name}/rp_filter`, '0')
  const tap = interfaceIndex(TAP)
  const inner = interfaceIndex(INNER_VETH)
  routes.change(
    `furnish the namespace of ${outer}`,
    setLinkUp(interfaceIndex(CUT.exit)),
    setLinkUp(tap, mtu),
    addAddress(tap, GUEST_GATEWAY, GUEST_PREFIX),
    addLinkRoute(inner, HOST_ADDRESS),
    addDefaultRoute(inner, HOST_ADDRESS),
  )
}

/**
 * Gives the slot its address, its rules and its counters, all of them in one transaction. The way to it, which is the
 * route, comes last: whatever is sent before that is judged already. When it fails, release the slot: it may be half
 * claimed.
 */
export function claimSlot(kernel: Kernel, claim: SlotClaim): void {
  const { instance, host, routes } = kernel
  const { slot, ip } = claim
  const outer = interfaceIndex(outerVeth(instance, slot))
  if (outer === 0) throw new Error(`slot ${slot} does not exist`)
  host.enter(netnsPath(instance, slot), () => {
    if (claim.asPrepared) addElements(SLOT_TABLE, ownerElements(ip))
    else replaceRules(claim)
    using inside = new NetlinkSocket()
    inside.change(`give slot ${slot} the address ${ip}`, addAddress(interfaceIndex(INNER_VETH), ip, 32))
  })
  try {
    routes.change(`route ${ip} to slot ${slot}`, addLinkRoute(outer, ip))
  } catch (error) {
    if (hasCode(error, 'EEXIST')) throw new Error(`${ip} belongs to another slot`, { cause: error })
    throw error
  }
}

/** In the slot's namespace: other rules than it was made with, or counters that go on. */
function replaceRules({ slot, ip, policy, usedBytes, ingressBytes }: SlotClaim): void {
  const budget = { limitBytes: policy.quotaBytes, usedBytes }
  const hasQuota = readCounts().quota !== undefined
  const rules = renderSlotPolicy(policy, budget, hasQuota, { usedBytes, ingressBytes })
  contextOf(slot).run(`${rules}\n${renderOwner(ip)}`)
}

/** Safe to repeat, and for a slot that was never finished. The program that holds the tap must have ended before. */
export async function releaseSlot(kernel: Kernel, slot: number, limitMs = FREE_LIMIT_MS): Promise<Released> {
  const { instance, routes } = kernel
  letGo(slot)
  const name = outerVeth(instance, slot)
  const outer = interfaceIndex(name)
  const addresses = outer === 0 ? [] : addressesOf(kernel, outer)
  for (const ip of addresses) routes.change(`remove the route to ${ip}`, deleteLinkRoute(outer, ip))
  removeNamespace(netnsPath(instance, slot))
  // Before anybody else gets the address. It takes the kernel ten milliseconds, in which it frees the namespace as well.
  for (const ip of addresses) deleteFlowsFrom(ip)
  if (await isFreed(name, limitMs)) return { slot, freed: true }

  // Somebody holds the tap. Without its link the namespace reaches nothing and the slot's number can be used again.
  try {
    routes.change(`delete ${name}`, deleteLink(interfaceIndex(name)))
    return { slot, freed: false }
  } catch (error) {
    // The kernel was only slow, and freed it after all.
    if (interfaceIndex(name) === 0) return { slot, freed: true }
    throw error
  }
}

export const addressesOf = (kernel: Kernel, outer: number): string[] =>
  readRoutes(kernel)
    .filter((route) => route.prefix === 32 && route.interfaceIndexes.includes(outer))
    .map((route) => route.address)

/** The host's end of the pair is the namespace's last trace outside. */
async function isFreed(name: string, limitMs: number): Promise<boolean> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await sleep(FREE_POLL_MS)) {
    if (interfaceIndex(name) === 0) return true
  }
  return interfaceIndex(name) === 0
}
