/**
 * Compiles the network of a sandbox, as the control plane describes it (HostVmNetwork), into the form that is enforced:
 * addresses for the kernel (netd/nft/slot-policy.ts), names for the egress proxy. A policy is plain data, so it can be sent
 * to other processes.
 *
 * A rule for a block inside a closed range, or in a network of this machine, takes effect only if the operator allows that
 * block (`granted`). A wider block, such as 0.0.0.0/0, opens only the public addresses in it. Sandboxes reach each other only through private networks, so no
 * rule opens the block of the sandboxes. The address of the host is link-local, but needs no permission of the operator: a
 * rule that names it is enough, because the host accepts nothing there but DNS and requests to the API.
 */
import { type HostVmNetwork, isOpenEgress, namesHost, parseEgressRules } from '@warren/protocol'
import { type Cidr, contains, parseCidr, removeContained } from './cidr.ts'
import { isClosedBlock } from './closed-ranges.ts'
import { isOfMachine, isSameMachine, type Machine } from './machine.ts'
import { HOST_ADDRESS, MEMBER_DOMAIN } from './names.ts'

export type PortBlock = Cidr & { port: number }
/** `anyPort` has no overlaps, and neither has `onePort` for any port: the kernel's interval sets reject overlaps. */
export type Blocks = { anyPort: Cidr[]; onePort: PortBlock[] }
export type HostRule = { host: string; subdomains: boolean; ports: readonly number[] }

export type HostPorts = 'all' | readonly number[]

export type Policy = {
  revision: number
  /** The block that the addresses of all sandboxes are taken from. */
  cidr: string
  /** Without an allowlist: all public addresses and names are allowed. */
  open: boolean
  /** TCP ports of the host, beside DNS, that the sandbox may send to. The host accepts only the port of the API. */
  hostPorts: HostPorts
  hosts: HostRule[]
  rules: Blocks
  /** Allowed blocks inside closed ranges. */
  granted: Blocks
  /** The addresses of the members of its private networks. */
  peers: string[]
  /** The names of these members and their addresses. */
  names: Record<string, string[]>
  quotaBytes: number
  machine: Machine
}

export type PolicySettings = {
  cidr: string
  /** Blocks inside closed ranges and networks of this machine that rules may open. */
  privateCidrs: readonly string[]
  machine: Machine
}

export function compilePolicy(network: HostVmNetwork, { cidr, privateCidrs, machine }: PolicySettings): Policy {
  const parsed = parseEgressRules(network.egress)
  if (typeof parsed === 'string') throw new Error(`invalid egress rule: ${parsed}`)
  const open = isOpenEgress(network.egress)
  const sandboxes = parseCidr(cidr)
  const allowed = privateCidrs.map(parseCidr)
  const blocks = parsed.filter((rule) => rule.kind === 'block').filter((block) => !contains(sandboxes, block))
  const isHost = (block: (typeof blocks)[number]) => namesHost(block, HOST_ADDRESS)
  const isGranted = (block: Cidr) => allowed.some((range) => contains(range, block))
  const members = network.networks.flatMap((one) => one.members)
  return {
    revision: network.revision,
    cidr,
    open,
    hostPorts: open ? 'all' : compileHostPorts(blocks.filter(isHost)),
    hosts: parsed.flatMap((rule) =>
      rule.kind === 'host' ? [{ host: rule.host, subdomains: rule.subdomains, ports: rule.ports }] : [],
    ),
    rules: toBlocks(blocks.filter((block) => !isClosedBlock(block) && !isGranted(block))),
    granted: toBlocks(blocks.filter((block) => isGranted(block) && !isHostAddress(block))),
    peers: [...new Set(members.map(({ ip }) => ip))].sort(),
    names: groupNames(network.networks.flatMap(nameMembers)),
    quotaBytes: network.bandwidth.quota_bytes,
    machine,
  }
}

/** A wider block around the address of the host can be granted as well: the rule for the host comes first. */
const isHostAddress = ({ address, prefix }: Cidr): boolean => address === HOST_ADDRESS && prefix === 32

function compileHostPorts(blocks: readonly { port?: number }[]): HostPorts {
  const ports = blocks.flatMap(({ port }) => port ?? [])
  if (ports.length < blocks.length) return 'all'
  return [...new Set(ports)].sort((one, other) => one - other)
}

export const allowsHostPort = ({ hostPorts }: Pick<Policy, 'hostPorts'>, port: number | undefined): boolean =>
  hostPorts === 'all' || (port !== undefined && hostPorts.includes(port))

/** `name` is in lower case and without a last dot. Without `port`: is the name allowed on any port? */
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

/** Whether packets to this address may leave without the proxy. Must decide as the slot's table does. */
export function allowsAddress(policy: Policy, address: string, port: number | undefined): boolean {
  const { peers, machine } = policy
  if (peers.includes(address) || address === HOST_ADDRESS) return true
  if (contains(parseCidr(policy.cidr), { address, prefix: 32 })) return false
  if (machine.addresses.includes(address)) return port === machine.api.port && apiAddresses(policy).includes(address)
  if (inBlocks(policy.granted, address, port)) return true
  return !isOfMachine(machine, address) && allowsPublicAddress(policy, address, port)
}

/** The addresses of this machine, beside HOST_ADDRESS, at which the sandbox may reach the API. */
export function apiAddresses(policy: Policy): string[] {
  const { api, addresses } = policy.machine
  if (api.port === 0 || !api.beyondLoopback) return []
  return addresses.filter(
    (address) => inBlocks(policy.granted, address, api.port) || allowsPublicAddress(policy, address, api.port),
  )
}

const allowsPublicAddress = (policy: Policy, address: string, port: number | undefined): boolean =>
  !isClosedBlock({ address, prefix: 32 }) && (policy.open || inBlocks(policy.rules, address, port))

/**
 * Whether `to` may refuse a flow that `from` allowed. Listing the flows takes the kernel ten milliseconds, which a recharge
 * or a new member should not cost. Flows between members need no check: the table checks each of their packets.
 */
export function narrows(from: Policy, to: Policy): boolean {
  const same = (part: 'hosts' | 'rules' | 'granted') => JSON.stringify(from[part]) === JSON.stringify(to[part])
  if (!same('granted') || !containsPorts(to.hostPorts, from.hostPorts)) return true
  if (!isSameMachine(from.machine, to.machine)) return true
  return !to.open && (from.open || !same('hosts') || !same('rules'))
}

const containsPorts = (all: HostPorts, some: HostPorts): boolean =>
  all === 'all' || (some !== 'all' && some.every((port) => all.includes(port)))

/** Whether both policies make the same rules in the kernel, which does not know the names of members. */
export function hasSameRules(one: Policy, other: Policy): boolean {
  const rules = ({ revision: _, names: __, ...rest }: Policy) => JSON.stringify(rest)
  return one.open === other.open && one.quotaBytes === other.quotaBytes && rules(one) === rules(other)
}

function toBlocks(blocks: readonly (Cidr & { port?: number })[]): Blocks {
  const ports = new Set(blocks.flatMap(({ port }) => port ?? []))
  return {
    anyPort: removeContained(blocks.filter(({ port }) => port === undefined)),
    onePort: [...ports]
      .sort((one, other) => one - other)
      .flatMap((port) =>
        removeContained(blocks.filter((block) => block.port === port)).map((block) => ({ ...block, port })),
      ),
  }
}

/** Every member by its name and by a longer one that includes the network, because names repeat across networks. */
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
