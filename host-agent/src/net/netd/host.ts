/**
 * The host's side, once per Warren: forwarding, the blackhole under the sandboxes' block, the address guests know the
 * host by, and the table. Safe to repeat at any time; sandboxes that live notice nothing.
 *
 * Rules come before forwarding is switched on: there is no moment in which a packet passes unjudged.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { type Cidr, contains, overlaps, parseCidr, renderCidr } from '../cidr.ts'
import { HOST_ADDRESS, HOST_TABLE_PREFIX, hostTable, outerVethPrefix } from '../names.ts'
import type { HostNetwork, HostSettings } from '../netd-protocol.ts'
import { hasHostTable, type Kernel, readLinks, readRoutes, tableNames } from './kernel.ts'
import { hasCode, interfaceIndex } from './libc.ts'
import {
  addAddress,
  addBlackhole,
  deleteAddress,
  deleteBlackhole,
  type Link,
  ROUTE_PROTOCOL,
  type Route,
} from './netlink/route.ts'
import { FORWARDING_WAS_OFF, renderDeleteHostTable, renderHostTable } from './nft/host-table.ts'

const IP_FORWARD = '/proc/sys/net/ipv4/ip_forward'
/** Ethernet's, for a machine without an uplink to ask. */
const DEFAULT_MTU = 1500

export function setUpHost(kernel: Kernel, settings: HostSettings): HostNetwork {
  const { instance, nft, routes } = kernel
  const cidr = parseCidr(settings.cidr)
  const links = readLinks(kernel)
  const known = readRoutes(kernel)
  checkBlock(cidr, known, links, instance)
  const uplinks = settings.uplink === undefined ? findUplinks(known, links) : [getLink(links, settings.uplink)]

  // The metric is the owner's name: 8 hex digits are what fits into it.
  routes.change(`add blackhole ${settings.cidr}`, addBlackhole(cidr.address, cidr.prefix, ownMetric(instance)))
  removeOldBlackholes(kernel, cidr, known)
  routes.change(`add ${HOST_ADDRESS} to lo`, addAddress(interfaceIndex('lo'), HOST_ADDRESS, 32))
  const forwarding = readFileSync(IP_FORWARD, 'utf8').trim() === '1'
  nft.run(
    renderHostTable({
      instance,
      cidr: settings.cidr,
      uplinks: uplinks.map((link) => link.name),
      gate: settings.gate,
      apiPorts: settings.apiPorts,
      forwardingWasOff: !forwarding || rememberedForwardingOff(kernel),
    }),
  )
  if (!forwarding) writeFileSync(IP_FORWARD, '1')
  const mtu = Math.min(...uplinks.map((link) => link.mtu))
  return {
    uplinks: uplinks.map((link) => link.name),
    mtu: uplinks.length === 0 ? DEFAULT_MTU : mtu,
    warnings: findWarnings(kernel, uplinks),
  }
}

/**
 * Takes the table, the blackhole and the address away. Forwarding is switched off again only when it was off before
 * Warren and no other Warren is here: a machine that did not forward must not be left forwarding, and one that did
 * must not stop. What another program began to forward meanwhile we cannot know; it would have found it on.
 */
export function removeHost(kernel: Kernel): void {
  const { instance, nft, routes } = kernel
  const others = tableNames(kernel).filter((name) => name.startsWith(HOST_TABLE_PREFIX) && name !== hostTable(instance))
  if (others.length === 0) {
    if (rememberedForwardingOff(kernel)) writeFileSync(IP_FORWARD, '0')
    removeHostAddress(kernel)
  }
  nft.run(renderDeleteHostTable(instance))
  for (const route of readRoutes(kernel).filter((one) => isOwnBlackhole(one, instance))) {
    routes.change('delete blackhole', deleteBlackhole(route.address, route.prefix, route.metric))
  }
}

function removeHostAddress({ routes }: Kernel): void {
  try {
    routes.change(`remove ${HOST_ADDRESS} from lo`, deleteAddress(interfaceIndex('lo'), HOST_ADDRESS, 32))
  } catch (error) {
    if (!hasCode(error, 'EADDRNOTAVAIL')) throw error
  }
}

/** The operator changed WARREN_SANDBOX_CIDR: the new block's blackhole stands, the old one's goes. */
function removeOldBlackholes({ routes, instance }: Kernel, cidr: Cidr, known: readonly Route[]): void {
  for (const route of known.filter((one) => isOwnBlackhole(one, instance))) {
    if (route.address === cidr.address && route.prefix === cidr.prefix) continue
    routes.change('delete the old blackhole', deleteBlackhole(route.address, route.prefix, route.metric))
  }
}

const ownMetric = (instance: string): number => Number.parseInt(instance, 16)
const isOwnBlackhole = (route: Route, instance: string): boolean =>
  route.type === 'blackhole' && route.protocol === ROUTE_PROTOCOL && route.metric === ownMetric(instance)

/** Throws when the block's addresses belong to somebody else on this machine. */
export function checkBlock(cidr: Cidr, routes: readonly Route[], links: readonly Link[], instance: string): void {
  const nameOf = new Map(links.map((link) => [link.index, link.name]))
  for (const route of routes) {
    if (route.prefix === 0 || !overlaps(cidr, route) || isOwnBlackhole(route, instance)) continue
    const devices = route.interfaceIndexes.map((index) => nameOf.get(index) ?? `interface ${index}`)
    if (devices.length > 0 && devices.every((name) => name.startsWith(outerVethPrefix(instance)))) continue
    const block = renderCidr(cidr)
    const other = renderCidr(route)
    if (route.protocol === ROUTE_PROTOCOL) {
      const gone = `ip route del blackhole ${other} metric ${route.metric}`
      const remedy = route.type === 'blackhole' ? `, or, if that one is gone for good: ${gone}` : ''
      throw new Error(`${block} belongs to another Warren on this machine; set another WARREN_SANDBOX_CIDR${remedy}`)
    }
    // A wide route over a gateway may contain the block: ours is narrower and wins, and takes nothing from a neighbour.
    if (!contains(cidr, route) && !route.scopeLink) continue
    const where = devices.length > 0 ? ` on ${devices.join(', ')}` : ''
    throw new Error(`${block} overlaps the route to ${other}${where}; set another WARREN_SANDBOX_CIDR`)
  }
}

export function findUplinks(routes: readonly Route[], links: readonly Link[]): Link[] {
  const indexes = new Set(
    routes.filter((route) => route.prefix === 0 && route.type === 'unicast').flatMap((route) => route.interfaceIndexes),
  )
  return links.filter((link) => indexes.has(link.index))
}

function getLink(links: readonly Link[], name: string): Link {
  const link = links.find((one) => one.name === name)
  if (link === undefined) {
    throw new Error(`there is no interface ${name}; this machine has ${links.map((one) => one.name).join(', ')}`)
  }
  return link
}

function rememberedForwardingOff(kernel: Kernel): boolean {
  if (!hasHostTable(kernel)) return false
  const found = kernel.nft.list(`table ip ${hostTable(kernel.instance)}`)
  return found.some((one) => (one.chain as { name?: string } | undefined)?.name === FORWARDING_WAS_OFF)
}

type Chain = { family: string; table: string; name: string; hook?: string; policy?: string }

/** An `accept` of ours does not overrule a drop in another program's table: Docker's, ufw's, firewalld's. */
function findWarnings({ nft, instance }: Kernel, uplinks: readonly Link[]): string[] {
  const warnings = nft
    .list('chains')
    .flatMap((one) => (one.chain as Chain | undefined) ?? [])
    .filter(({ family, table }) => ['ip', 'inet'].includes(family) && !table.startsWith(HOST_TABLE_PREFIX))
    .filter(({ hook, policy }) => policy === 'drop' && (hook === 'forward' || hook === 'input'))
    .map(
      ({ family, table, name, hook }) =>
        `the chain ${family} ${table} ${name} drops what it does not know: accept ` +
        `${hook === 'forward' ? 'forwarding from and to' : 'DNS from'} ${outerVethPrefix(instance)}* there`,
    )
  if (uplinks.length > 0) return warnings
  return ['this machine has no default route: sandboxes reach nothing beyond it', ...warnings]
}
