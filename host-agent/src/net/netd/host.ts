/**
 * Sets up the host's side of the network, once per Warren: forwarding, a blackhole route for the block of the sandboxes, the
 * address of the host for guests, and the host's table. Safe to repeat at any time without an effect on running sandboxes.
 *
 * The rules are in place before forwarding is enabled, so no packet is forwarded unfiltered.
 */
import { readFileSync, writeFileSync } from 'node:fs'
import { networkInterfaces } from 'node:os'
import { interfaceIndex } from '../../ffi/socket.ts'
import { hasCode } from '../../ffi/system-call.ts'
import { type Cidr, contains, overlaps, parseCidr, renderCidr } from '../cidr.ts'
import type { Upstream } from '../egress-proxy-protocol.ts'
import { type MachineNetwork, toMachineNetwork } from '../machine.ts'
import { HOST_ADDRESS, HOST_TABLE_PREFIX, hostTable, isOuterVeth, outerVethPrefix } from '../names.ts'
import type { HostCheck, HostNetwork, HostSettings } from '../netd-protocol.ts'
import { parseResolvConf, RESOLV_CONF } from '../resolv-conf.ts'
import {
  applyHostTables,
  areHostTablesCurrent,
  findHostTableState,
  forgetHostTable,
  type HostTables,
  rememberedForwardingWasOff,
} from './host-table.ts'
import { hasHostTable, type Kernel, readLinks, readRoutes, tableNames } from './kernel.ts'
import {
  addAddress,
  addBlackhole,
  deleteAddress,
  deleteBlackhole,
  type Link,
  ROUTE_PROTOCOL,
  type Route,
} from './netlink/route.ts'
import { FORWARDING_WAS_OFF, renderDeleteHostTable } from './nft/host-table.ts'
import { renderDeleteProxyTable } from './nft/proxy-table.ts'

const IP_FORWARD = '/proc/sys/net/ipv4/ip_forward'
/** That of Ethernet, for a machine without an uplink. */
const DEFAULT_MTU = 1500

export function setUpHost(kernel: Kernel, settings: HostSettings): HostNetwork {
  const { instance, routes } = kernel
  const cidr = parseCidr(settings.cidr)
  const links = readLinks(kernel)
  const existing = readRoutes(kernel)
  checkBlock(cidr, existing, links, instance)
  checkHostAddress(networkInterfaces())
  const uplinks = settings.uplink === undefined ? findUplinks(existing, links) : [getLink(links, settings.uplink)]
  const machine = readMachineNetwork(existing, links)
  const upstreams = settings.proxyAccess.upstreams ?? readUpstreams()

  // The metric identifies the instance: it has room for its 8 hex digits.
  routes.change(`add blackhole ${settings.cidr}`, addBlackhole(cidr.address, cidr.prefix, ownMetric(instance)))
  removeOldBlackholes(kernel, cidr, existing)
  routes.change(`add ${HOST_ADDRESS} to lo`, addAddress(interfaceIndex('lo'), HOST_ADDRESS, 32))
  const forwarding = isForwarding()
  // Another Warren may have turned it on, and stop before this one. The last one turns it off.
  const forwardingWasOff =
    !forwarding ||
    wasForwardingOff(kernel) ||
    listOtherTables(kernel).some((table) => saysForwardingWasOff(kernel, table))
  applyHostTables(kernel, describeTables(kernel, settings, uplinks, { machine, upstreams }, forwardingWasOff))
  if (!forwarding) writeFileSync(IP_FORWARD, '1')
  const mtu = Math.min(...uplinks.map((link) => link.mtu))
  return {
    uplinks: uplinks.map((link) => link.name),
    mtu: uplinks.length === 0 ? DEFAULT_MTU : mtu,
    warnings: findWarnings(kernel, uplinks),
    machine,
    upstreams,
  }
}

/**
 * Restores what another program changed or removed, and follows changes of the uplinks and of the networks of this machine.
 * After the host has been torn down it restores nothing.
 */
export function checkHost(kernel: Kernel, settings: HostSettings): HostCheck {
  const state = findHostTableState(kernel)
  const restored = state === 'removed' ? [] : restoreAddressAndForwarding(kernel)
  if (state === 'changed') restored.push('the nftables tables')
  const links = readLinks(kernel)
  const existing = readRoutes(kernel)
  const uplinks =
    settings.uplink === undefined ? findUplinks(existing, links) : links.filter((link) => link.name === settings.uplink)
  const machine = readMachineNetwork(existing, links)
  const upstreams = settings.proxyAccess.upstreams ?? readUpstreams()
  const tables = describeTables(kernel, settings, uplinks, { machine, upstreams }, wasForwardingOff(kernel))
  if (state !== 'removed' && (state !== 'intact' || !areHostTablesCurrent(tables))) applyHostTables(kernel, tables)
  return { restored, machine, upstreams }
}

/** A reload of the machine's network configuration can remove both. */
function restoreAddressAndForwarding({ routes }: Kernel): string[] {
  const restored: string[] = []
  if (!networkInterfaces().lo?.some(({ address }) => address === HOST_ADDRESS)) {
    routes.change(`add ${HOST_ADDRESS} to lo`, addAddress(interfaceIndex('lo'), HOST_ADDRESS, 32))
    restored.push(`the address ${HOST_ADDRESS}`)
  }
  if (!isForwarding()) {
    writeFileSync(IP_FORWARD, '1')
    restored.push('forwarding')
  }
  return restored
}

const isForwarding = (): boolean => readFileSync(IP_FORWARD, 'utf8').trim() === '1'

const describeTables = (
  { instance }: Kernel,
  { cidr, egressProxy, s3Port, proxyAccess, s3ProxyAccess, api, limits }: HostSettings,
  uplinks: readonly Link[],
  { machine, upstreams }: Pick<HostCheck, 'machine' | 'upstreams'>,
  forwardingWasOff: boolean,
): HostTables => ({
  host: {
    ...{ instance, cidr, egressProxy, s3Port, api, limits, forwardingWasOff },
    uplinks: uplinks.map((link) => link.name),
    subnets: machine.subnets,
  },
  proxy: {
    ...{ instance, cidr, machine, upstreams, uid: proxyAccess.uid, privateCidrs: proxyAccess.privateCidrs },
    ...(s3ProxyAccess && { s3Proxy: { ...s3ProxyAccess, cidr, upstreams, machine, subnetsV6: listSubnetsV6() } }),
  },
})

/** Of the interfaces of this machine. Its own addresses are inside of them. */
function listSubnetsV6(): string[] {
  const blocks = Object.values(networkInterfaces()).flatMap((addresses = []) =>
    addresses.flatMap(({ family, cidr }) => (family === 'IPv6' && cidr !== null ? [cidr] : [])),
  )
  return [...new Set(blocks)].sort()
}

/** While the file cannot be read, the last list stays in use: the network is probably being reconfigured. */
let lastUpstreams: Upstream[] = []

function readUpstreams(): Upstream[] {
  try {
    lastUpstreams = parseResolvConf(readFileSync(RESOLV_CONF, 'utf8'))
  } catch (error) {
    if (!hasCode(error, 'ENOENT', 'EACCES')) throw error
  }
  return lastUpstreams
}

/** Without the links to sandboxes, of this Warren and of others. */
function readMachineNetwork(routes: readonly Route[], links: readonly Link[]): MachineNetwork {
  const toSandboxes = new Set(links.filter(({ name }) => isOuterVeth(name)).map(({ index }) => index))
  const connected = routes.filter(
    (route) =>
      route.type === 'unicast' &&
      route.scopeLink &&
      route.prefix > 0 &&
      !route.interfaceIndexes.some((index) => toSandboxes.has(index)),
  )
  return toMachineNetwork(listOwnAddresses(networkInterfaces()), connected)
}

export const listOwnAddresses = (interfaces: ReturnType<typeof networkInterfaces>): string[] =>
  Object.entries(interfaces)
    .filter(([name]) => !isOuterVeth(name))
    .flatMap(([, addresses = []]) => addresses.filter(({ family }) => family === 'IPv4').map(({ address }) => address))
    .filter((address) => address !== HOST_ADDRESS && !address.startsWith('127.'))

/**
 * Removes the table, the blackhole route and, unless another Warren on this machine uses it, the address. Forwarding is
 * disabled only if it was off before Warren started and no other Warren runs here: a machine that did not forward must not be
 * left forwarding, and one that did must not stop. Whether another program relies on forwarding by now is unknown.
 */
export function removeHost(kernel: Kernel): void {
  const { instance, nft, routes } = kernel
  const others = listOtherTables(kernel)
  if (others.length === 0) {
    if (wasForwardingOff(kernel)) writeFileSync(IP_FORWARD, '0')
  }
  if (!others.some((name) => usesHostAddress(kernel, name))) removeHostAddress(kernel)
  nft.run(`${renderDeleteHostTable(instance)}\n${renderDeleteProxyTable(instance)}`)
  forgetHostTable()
  for (const route of readRoutes(kernel).filter((one) => isOwnBlackhole(one, instance))) {
    routes.change('delete blackhole', deleteBlackhole(route.address, route.prefix, route.metric))
  }
}

/** The tables of other Warrens on this machine. */
const listOtherTables = (kernel: Kernel): string[] =>
  tableNames(kernel).filter((name) => name.startsWith(HOST_TABLE_PREFIX) && name !== hostTable(kernel.instance))

/** Another Warren may have another address (WARREN_GUEST_HOST). */
const usesHostAddress = ({ nft }: Kernel, table: string): boolean =>
  JSON.stringify(nft.list(`table ip ${table}`)).includes(`"${HOST_ADDRESS}"`)

function removeHostAddress({ routes }: Kernel): void {
  try {
    routes.change(`remove ${HOST_ADDRESS} from lo`, deleteAddress(interfaceIndex('lo'), HOST_ADDRESS, 32))
  } catch (error) {
    if (!hasCode(error, 'EADDRNOTAVAIL')) throw error
  }
}

/** After the operator changed WARREN_SANDBOX_CIDR. The blackhole route of the new block was added before. */
function removeOldBlackholes({ routes, instance }: Kernel, cidr: Cidr, existing: readonly Route[]): void {
  for (const route of existing.filter((one) => isOwnBlackhole(one, instance))) {
    if (route.address === cidr.address && route.prefix === cidr.prefix) continue
    routes.change('delete the old blackhole', deleteBlackhole(route.address, route.prefix, route.metric))
  }
}

const ownMetric = (instance: string): number => Number.parseInt(instance, 16)
const isOwnBlackhole = (route: Route, instance: string): boolean =>
  route.type === 'blackhole' && route.protocol === ROUTE_PROTOCOL && route.metric === ownMetric(instance)

/** Throws when addresses of the block are in use by another program on this machine. */
export function checkBlock(cidr: Cidr, routes: readonly Route[], links: readonly Link[], instance: string): void {
  const nameOf = new Map(links.map((link) => [link.index, link.name]))
  for (const route of routes) {
    if (route.prefix === 0 || !overlaps(cidr, route) || isOwnBlackhole(route, instance)) continue
    const devices = route.interfaceIndexes.map((index) => nameOf.get(index) ?? `interface ${index}`)
    if (devices.length > 0 && devices.every((name) => name.startsWith(outerVethPrefix(instance)))) continue
    const block = renderCidr(cidr)
    const other = renderCidr(route)
    if (route.protocol === ROUTE_PROTOCOL) {
      const command = `ip route del blackhole ${other} metric ${route.metric}`
      const remedy = route.type === 'blackhole' ? `, or, if that one no longer exists, run: ${command}` : ''
      throw new Error(`${block} belongs to another Warren on this machine; set another WARREN_SANDBOX_CIDR${remedy}`)
    }
    // A wider route through a gateway may contain the block. The route added here is more specific, so it takes
    // precedence and hides no address that is directly reachable.
    if (!contains(cidr, route) && !route.scopeLink) continue
    const where = devices.length > 0 ? ` on ${devices.join(', ')}` : ''
    throw new Error(`${block} overlaps the route to ${other}${where}; set another WARREN_SANDBOX_CIDR`)
  }
}

/**
 * Throws when another interface of this machine has the address: its network would lose this machine. The loopback
 * interface has it from an earlier start or from another Warren, and the links to sandboxes have it as well.
 */
export function checkHostAddress(interfaces: ReturnType<typeof networkInterfaces>): void {
  for (const [name, addresses = []] of Object.entries(interfaces)) {
    if (name === 'lo' || isOuterVeth(name) || !addresses.some(({ address }) => address === HOST_ADDRESS)) continue
    throw new Error(
      `${HOST_ADDRESS}, the address of this machine for sandboxes, is already used on ${name}; ` +
        'set another WARREN_GUEST_HOST, such as 169.254.2.1',
    )
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
    throw new Error(`interface ${name} does not exist; this machine has ${links.map((one) => one.name).join(', ')}`)
  }
  return link
}

function wasForwardingOff(kernel: Kernel): boolean {
  if (rememberedForwardingWasOff()) return true
  return hasHostTable(kernel) && saysForwardingWasOff(kernel, hostTable(kernel.instance))
}

const saysForwardingWasOff = ({ nft }: Kernel, table: string): boolean =>
  nft.list(`table ip ${table}`).some((one) => (one.chain as { name?: string } | undefined)?.name === FORWARDING_WAS_OFF)

type Chain = { family: string; table: string; name: string; hook?: string; policy?: string }

/** Our `accept` does not override a drop in the table of another program, such as Docker, ufw or firewalld. */
function findWarnings({ nft, instance }: Kernel, uplinks: readonly Link[]): string[] {
  const warnings = nft
    .list('chains')
    .flatMap((one) => (one.chain as Chain | undefined) ?? [])
    .filter(({ family, table }) => ['ip', 'inet'].includes(family) && !table.startsWith(HOST_TABLE_PREFIX))
    .filter(({ hook, policy }) => policy === 'drop' && (hook === 'forward' || hook === 'input'))
    .map(
      ({ family, table, name, hook }) =>
        `the nftables chain ${family} ${table} ${name} drops packets by default; add a rule that accepts ` +
        `${hook === 'forward' ? 'forwarding from and to' : 'DNS from'} ${outerVethPrefix(instance)}*`,
    )
  if (uplinks.length > 0) return warnings
  return ['this machine has no default route, so sandboxes reach nothing beyond it', ...warnings]
}
