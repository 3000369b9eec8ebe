/**
 * To which addresses this machine may connect for a user. The user names the server, and this machine can reach more than the
 * user can: other services on loopback, private networks, the metadata service of a cloud. So only public addresses are
 * allowed, and those that the operator has opened.
 *
 * Public addresses of this machine count as loopback: no firewall in front of it would see a connection from itself.
 */
import { BlockList, isIP, isIPv4 } from 'node:net'
import { networkInterfaces } from 'node:os'
import { CLOSED_RANGES } from '@warren/protocol'
import { addressBytes } from '../client-network.ts'

/** Also not public by the registries of IANA (RFC 6890 and its successors). */
const CLOSED_V4 = [...CLOSED_RANGES, '192.0.2.0/24', '192.88.99.0/24', '198.51.100.0/24', '203.0.113.0/24']
/** Of IPv6 only global unicast is public, without the parts that are for documentation or contain another address. */
const PUBLIC_V6 = ['2000::/3']
const CLOSED_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']
const LOOPBACK = ['127.0.0.0/8', '::1/128']

export type AddressPolicy = {
  /** `allowLoopback`: the server belongs to the local user of a single machine. */
  isAllowed(address: string, allowLoopback: boolean): boolean
}

/** Throws if a block is not valid. */
export function createAddressPolicy(
  privateCidrs: readonly string[],
  listOwnAddresses: () => string[] = listInterfaceAddresses,
): AddressPolicy {
  const opened = blockListOf(privateCidrs)
  const loopback = blockListOf(LOOPBACK)
  const closed = blockListOf([...CLOSED_V4, ...CLOSED_V6])
  const publicV6 = blockListOf(PUBLIC_V6)
  let own = new BlockList()
  let ownReadAt = Number.NEGATIVE_INFINITY

  function isOwn(address: string, family: 'ipv4' | 'ipv6'): boolean {
    if (performance.now() - ownReadAt > OWN_ADDRESSES_MS) {
      own = blockListOf(listOwnAddresses())
      ownReadAt = performance.now()
    }
    return own.check(address, family)
  }

  return {
    isAllowed(given, allowLoopback) {
      const address = normalizeAddress(given)
      if (address === undefined) return false
      const family = isIPv4(address) ? 'ipv4' : 'ipv6'
      if (opened.check(address, family)) return true
      if (loopback.check(address, family)) return allowLoopback
      const isPublic = !closed.check(address, family) && (family === 'ipv4' || publicV6.check(address, family))
      return isPublic && (allowLoopback || !isOwn(address, family))
    },
  }
}

/** A machine with many sandboxes has many interfaces, and its public addresses seldom change. */
const OWN_ADDRESSES_MS = 10_000

const listInterfaceAddresses = (): string[] =>
  Object.values(networkInterfaces()).flatMap((list) => (list ?? []).map(({ address }) => address))

function blockListOf(cidrs: readonly string[]): BlockList {
  const list = new BlockList()
  for (const cidr of cidrs) {
    const block = parseBlock(cidr)
    if (!block) throw new Error(`"${cidr}" is not an address block`)
    list.addSubnet(...block)
  }
  return list
}

type Block = [address: string, bits: number, family: 'ipv4' | 'ipv6']

function parseBlock(cidr: string): Block | undefined {
  const [address = '', length] = cidr.split('/')
  const version = isIP(address)
  const max = version === 4 ? 32 : 128
  const bits = length === undefined ? max : Number(/^\d{1,3}$/.exec(length)?.[0] ?? Number.NaN)
  return version !== 0 && bits <= max ? [address, bits, version === 4 ? 'ipv4' : 'ipv6'] : undefined
}

/** For a setting: what is wrong with a list of address blocks. */
export function checkAddressBlocks(cidrs: readonly string[]): string | undefined {
  const wrong = cidrs.find((cidr) => !parseBlock(cidr))
  return wrong === undefined ? undefined : `must be a list of address blocks such as 10.20.0.0/16, not "${wrong}"`
}

/** An IPv4 address inside an IPv6 address (mapped, or behind NAT64) counts as that IPv4 address. */
function normalizeAddress(given: string): string | undefined {
  const [address = ''] = given.split('%')
  if (isIPv4(address)) return address
  if (isIP(address) !== 6) return undefined
  const bytes = addressBytes(address)
  const isInside = EMBEDDING_PREFIXES.some((prefix) => bytes.subarray(0, prefix.length).equals(prefix))
  return isInside ? bytes.subarray(12).join('.') : address
}

/** ::ffff:0:0/96 and 64:ff9b::/96. */
const EMBEDDING_PREFIXES = ['00000000000000000000ffff', '0064ff9b0000000000000000'].map((hex) =>
  Buffer.from(hex, 'hex'),
)
