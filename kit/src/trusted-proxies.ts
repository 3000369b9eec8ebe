/** Tells connections of the operator's own reverse proxies from those of clients. */
import { BlockList, isIP } from 'node:net'

/** `proxies` are addresses and CIDR blocks (WARREN_TRUSTED_PROXIES). */
export function createTrustedProxyCheck(proxies: readonly string[]): (ip: string) => boolean {
  const list = new BlockList()
  for (const proxy of proxies) {
    const [address = '', prefix] = proxy.split('/')
    const family = isIP(address) === 6 ? 'ipv6' : 'ipv4'
    if (isIP(address) === 0) continue
    if (prefix === undefined) list.addAddress(address, family)
    else list.addSubnet(address, Number(prefix), family)
  }
  return (ip) => isIP(ip) !== 0 && list.check(ip, isIP(ip) === 6 ? 'ipv6' : 'ipv4')
}
