/**
 * To which addresses webhooks may be sent. Receivers are named by users, and this machine can reach more than they can: other
 * services on loopback, private networks, the metadata service of a cloud. So only public addresses are allowed, and those that
 * the operator has opened (WARREN_WEBHOOK_PRIVATE_CIDRS).
 *
 * Public addresses of this machine count as loopback: no firewall in front of it would see a connection from itself.
 */
import { BlockList, isIP, isIPv4 } from 'node:net'
import { networkInterfaces } from 'node:os'

/** Not public by the registries of IANA (RFC 6890 and its successors), and what clouds put on public addresses. */
const CLOSED_V4 = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.0.2.0/24',
  '192.88.99.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '198.51.100.0/24',
  '203.0.113.0/24',
  '224.0.0.0/4',
  '240.0.0.0/4',
  // The platform's services for virtual machines in Azure.
  '168.63.129.16/32',
]
/** Of IPv6 only global unicast is public, without the parts that are for documentation or contain another address. */
const PUBLIC_V6 = ['2000::/3']
const CLOSED_V6 = ['2001::/23', '2001:db8::/32', '2002::/16', '3fff::/20']
const LOOPBACK = ['127.0.0.0/8', '::1/128']

export type AddressPolicy = {
  /** `allowLoopback`: the receiver belongs to the local user of a single machine. */
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
    const [address = '', length] = cidr.split('/')
    const version = isIP(address)
    const bits = Number(length ?? (version === 4 ? 32 : 128))
    if (version === 0 || !Number.isInteger(bits) || bits < 0 || bits > (version === 4 ? 32 : 128)) {
      throw new Error(
        `WARREN_WEBHOOK_PRIVATE_CIDRS must be a list of address blocks such as 10.20.0.0/16, not "${cidr}"`,
      )
    }
    list.addSubnet(address, bits, version === 4 ? 'ipv4' : 'ipv6')
  }
  return list
}

/** An IPv4 address inside an IPv6 address (mapped, or behind NAT64) counts as that IPv4 address. */
function normalizeAddress(given: string): string | undefined {
  const [address = ''] = given.split('%')
  if (isIPv4(address)) return address
  if (isIP(address) !== 6) return undefined
  const groups = expand(address)
  const isMapped = groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff
  const isNat64 = groups[0] === 0x64 && groups[1] === 0xff9b && groups.slice(2, 6).every((group) => group === 0)
  if (!isMapped && !isNat64) return address
  const [high = 0, low = 0] = groups.slice(6)
  return [high >> 8, high & 255, low >> 8, low & 255].join('.')
}

/** The eight groups of a valid IPv6 address. */
function expand(address: string): number[] {
  const [head = '', tail] = address.split('::')
  const front = parseGroups(head)
  if (tail === undefined) return front
  const back = parseGroups(tail)
  return [...front, ...Array<number>(8 - front.length - back.length).fill(0), ...back]
}

const parseGroups = (text: string): number[] =>
  text === ''
    ? []
    : text.split(':').flatMap((group) => {
        if (!group.includes('.')) return [Number.parseInt(group, 16)]
        const [a = 0, b = 0, c = 0, d = 0] = group.split('.').map(Number)
        return [a * 256 + b, c * 256 + d]
      })
