/**
 * What the control plane says about a sandbox's network (HostVmNetwork) made ready to enforce: addresses for the kernel
 * (netd/nft/slot-policy.ts), names for the resolver and the proxy (egress-proxy/). Plain data, so it crosses to other processes and
 * into a file as it is.
 *
 * A block that lies inside a closed range "names" it and takes effect only where the operator allows that; a wider
 * block, such as 0.0.0.0/0, opens the public addresses in it and no others. Sandboxes reach each other through private
 * networks only, so no rule opens their own block.
 */
import { type HostVmNetwork, isOpenEgress, parseEgressRules } from '@warren/protocol'
import { addressNumber, type Cidr, contains, parseCidr } from './cidr.ts'
import { isClosedBlock } from './closed-ranges.ts'
import { HOST_ADDRESS, MEMBER_DOMAIN } from './names.ts'

export type PortBlock = Cidr & { port: number }
/** Disjoint, and disjoint for each port: the kernel's sets of intervals take no overlaps. */
export type Blocks = { anyPort: Cidr[]; onePort: PortBlock[] }
export type HostRule = { host: string; subdomains: boolean; ports: readonly number[] }

export type Policy = {
  revision: number
  /** The block of all sandboxes. */
  cidr: string
  open: boolean
  /** The host's own services beyond names: the API. */
  reachesHost: boolean
  hosts: HostRule[]
  rules: Blocks
  /** Inside closed ranges. */
  granted: Blocks
  peers: string[]
  /** Of the members of its networks, and where they are. */
  names: Record<string, string[]>
  quotaBytes: number
}

export type PolicySettings = {
  cidr: string
  /** Blocks inside closed ranges that rules may open. */
  privateCidrs: readonly string[]
}

export function compilePolicy(network: HostVmNetwork, { cidr, privateCidrs }: PolicySettings): Policy {
  const parsed = parseEgressRules(network.egress)
  if (typeof parsed === 'string') throw new Error(`bad egress rule: ${parsed}`)
  const open = isOpenEgress(network.egress)
  const sandboxes = parseCidr(cidr)
  const allowed = privateCidrs.map(parseCidr)
  const blocks = parsed.filter((rule) => rule.kind === 'block').filter((block) => !contains(sandboxes, block))
  const namesHost = (block: Cidr) => block.address === HOST_ADDRESS && block.prefix === 32
  const members = network.networks.flatMap((one) => one.members)
  return {
    revision: network.revision,
    cidr,
    open,
    reachesHost: open || blocks.some(namesHost),
    hosts: parsed.flatMap((rule) =>
      rule.kind === 'host' ? [{ host: rule.host, subdomains: rule.subdomains, ports: rule.ports }] : [],
    ),
    rules: toBlocks(blocks.filter((block) => !isClosedBlock(block))),
    granted: toBlocks(
      blocks.filter(
        (block) => isClosedBlock(block) && !namesHost(block) && allowed.some((range) => contains(range, block)),
      ),
    ),
    peers: [...new Set(members.map(({ ip }) => ip))].sort(),
    names: groupNames(network.networks.flatMap(nameMembers)),
    quotaBytes: network.bandwidth.quota_bytes,
  }
}

/** In force where nothing is known: nothing passes. */
export const closedPolicy = (cidr: string): Policy => ({
  revision: 0,
  cidr,
  open: false,
  reachesHost: false,
  hosts: [],
  rules: { anyPort: [], onePort: [] },
  granted: { anyPort: [], onePort: [] },
  peers: [],
  names: {},
  quotaBytes: 0,
})

/** By the name a client asks for, in lower case and without a last dot; `port` undefined asks about any. */
export function allowsName(policy: Pick<Policy, 'open' | 'hosts'>, name: string, port?: number): boolean {
  if (policy.open) return true
  return policy.hosts.some(
    ({ host, subdomains, ports }) =>
      (subdomains ? name.length > host.length + 1 && name.endsWith(`.${host}`) : name === host) &&
      (port === undefined || ports.includes(port)),
  )
}

export function inBlocks({ anyPort, onePort }: Blocks, address: string, port: number | undefined): boolean {
  const single = { address, prefix: 32 }
  return (
    anyPort.some((block) => contains(block, single)) ||
    onePort.some((block) => block.port === port && contains(block, single))
  )
}

/** May a packet leave for this address without the proxy? The same question as the slot's table answers. */
export function allowsAddress(policy: Policy, address: string, port: number | undefined): boolean {
  if (policy.peers.includes(address) || address === HOST_ADDRESS) return true
  const single = { address, prefix: 32 }
  if (contains(parseCidr(policy.cidr), single)) return false
  if (inBlocks(policy.granted, address, port)) return true
  return !isClosedBlock(single) && (policy.open || inBlocks(policy.rules, address, port))
}

/**
 * Could a flow that one policy allowed be refused by the next? Asking the kernel for flows takes it ten milliseconds,
 * so a recharge or a new member is not a reason to. Members are judged packet by packet.
 */
export function narrows(from: Policy, to: Policy): boolean {
  const same = (part: 'hosts' | 'rules' | 'granted') => JSON.stringify(from[part]) === JSON.stringify(to[part])
  if (!same('granted') || (from.reachesHost && !to.reachesHost)) return true
  return !to.open && (from.open || !same('hosts') || !same('rules'))
}

/** Would the kernel be told the same? Names of members are the resolver's alone. */
export function sameRules(one: Policy, other: Policy): boolean {
  const rules = ({ revision: _, names: __, ...rest }: Policy) => JSON.stringify(rest)
  return one.open === other.open && one.quotaBytes === other.quotaBytes && rules(one) === rules(other)
}

function toBlocks(blocks: readonly (Cidr & { port?: number })[]): Blocks {
  const ports = new Set(blocks.flatMap(({ port }) => port ?? []))
  return {
    anyPort: widest(blocks.filter(({ port }) => port === undefined)),
    onePort: [...ports]
      .sort((one, other) => one - other)
      .flatMap((port) => widest(blocks.filter((block) => block.port === port)).map((block) => ({ ...block, port }))),
  }
}

/** Two blocks are apart or one holds the other: sorted, a block comes right after the one that holds it. */
function widest(blocks: readonly Cidr[]): Cidr[] {
  const sorted = blocks
    .map(({ address, prefix }) => ({ address, prefix, first: addressNumber(address) }))
    .sort((one, other) => one.first - other.first || one.prefix - other.prefix)
  const kept: Cidr[] = []
  for (const { address, prefix } of sorted) {
    const last = kept.at(-1)
    if (last === undefined || !contains(last, { address, prefix })) kept.push({ address, prefix })
  }
  return kept
}

/** Each by its own name, and by the longer one that says in which network: two networks may have the same names. */
function nameMembers({ name: network, members }: HostVmNetwork['networks'][number]): { ip: string; name: string }[] {
  if (network === undefined) return members
  return members.flatMap(({ ip, name }) => [
    { ip, name },
    { ip, name: `${name}.${network}.${MEMBER_DOMAIN}` },
  ])
}

function groupNames(members: readonly { ip: string; name: string }[]): Record<string, string[]> {
  const names: Record<string, string[]> = Object.create(null)
  for (const { ip, name } of members) {
    names[name] ??= []
    if (!names[name].includes(ip)) names[name].push(ip)
  }
  return names
}
