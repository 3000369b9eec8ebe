/** IPv4 blocks such as 100.64.0.0/16. */
import { isIPv4 } from 'node:net'

export type Cidr = { address: string; prefix: number }

export function parseCidr(text: string): Cidr {
  const [address = '', prefixText = '', ...rest] = text.split('/')
  const prefix = Number(prefixText)
  if (!isIPv4(address) || !/^\d{1,2}$/.test(prefixText) || prefix > 32 || rest.length > 0) {
    throw new Error(`${JSON.stringify(text)} is not an IPv4 block such as 100.64.0.0/16`)
  }
  const base = maskOf(prefix) & addressNumber(address)
  if (base >>> 0 !== addressNumber(address)) {
    throw new Error(`${text} has bits set after its prefix; did you mean ${addressText(base)}/${prefix}?`)
  }
  return { address, prefix }
}

export const renderCidr = ({ address, prefix }: Cidr): string => `${address}/${prefix}`

/** Whether every address of `inner` is in `outer`. */
export const contains = (outer: Cidr, inner: Cidr): boolean =>
  inner.prefix >= outer.prefix &&
  (addressNumber(inner.address) & maskOf(outer.prefix)) === (addressNumber(outer.address) & maskOf(outer.prefix))

export const overlaps = (one: Cidr, other: Cidr): boolean => contains(one, other) || contains(other, one)

/**
 * Removes blocks that are inside another one. Two blocks are either disjoint or one contains the other, so after sorting a
 * block follows the one that contains it.
 */
export function removeContained(blocks: readonly Cidr[]): Cidr[] {
  const sorted = blocks
    .map(({ address, prefix }) => ({ address, prefix, first: addressNumber(address) }))
    .sort((one, other) => one.first - other.first || one.prefix - other.prefix)
  const result: Cidr[] = []
  for (const { address, prefix } of sorted) {
    const last = result.at(-1)
    if (last === undefined || !contains(last, { address, prefix })) result.push({ address, prefix })
  }
  return result
}

export function addressBytes(address: string): Buffer {
  if (!isIPv4(address)) throw new Error(`${JSON.stringify(address)} is not an IPv4 address`)
  return Buffer.from(address.split('.').map(Number))
}

/** Does not validate `address`: compiling a long list of rules calls this many thousand times. */
export function addressNumber(address: string): number {
  let value = 0
  let byte = 0
  for (let at = 0; at < address.length; at++) {
    const code = address.charCodeAt(at)
    if (code !== DOT) byte = byte * 10 + code - ZERO
    else {
      value = value * 256 + byte
      byte = 0
    }
  }
  return value * 256 + byte
}

const DOT = 46
const ZERO = 48

function addressText(value: number): string {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value >>> 0)
  return bytes.join('.')
}

/** Prefix 0 is a special case, because JavaScript takes a shift by 32 for a shift by 0. */
const maskOf = (prefix: number): number => (prefix === 0 ? 0 : -1 << (32 - prefix))
