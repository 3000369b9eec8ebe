/**
 * The key under which limits count a client. An IPv6 network of 64 bits belongs to one customer, who can use any address in
 * it, so its addresses count together. An IPv4 address counts alone, also when it is written as an IPv6 address.
 */
import { isIPv6 } from 'node:net'

const NETWORK_GROUPS = 4
const GROUPS = 8

export function clientNetwork(address: string): string {
  if (!address.includes(':')) return address
  const [plain = ''] = address.split('%') // Without the interface of a link-local address.
  if (!isIPv6(plain)) return address
  const groups = parseGroups(plain)
  const isMapped = groups.slice(0, 5).every((group) => group === 0) && groups[5] === 0xffff
  if (isMapped)
    return groups
      .slice(6)
      .flatMap((group) => [group >> 8, group & 255])
      .join('.')
  return `${groups
    .slice(0, NETWORK_GROUPS)
    .map((group) => group.toString(16))
    .join(':')}::/64`
}

/** The 4 or 16 bytes of an address. */
export function addressBytes(address: string): Buffer {
  if (!address.includes(':')) return Buffer.from(address.split('.').map(Number))
  return Buffer.from(parseGroups(address).flatMap((group) => [group >> 8, group & 255]))
}

/** The URL parser writes an address in one way (RFC 5952): hexadecimal, with at most one `::`. */
function parseGroups(address: string): number[] {
  const [before = '', after = ''] = new URL(`http://[${address}]`).hostname.slice(1, -1).split('::')
  const parse = (text: string) => (text === '' ? [] : text.split(':').map((group) => Number.parseInt(group, 16)))
  const [head, tail] = [parse(before), parse(after)]
  return [...head, ...Array<number>(GROUPS - head.length - tail.length).fill(0), ...tail]
}
