/** The name servers of this machine. */
import { isIP } from 'node:net'
import type { Upstream } from './egress-proxy-protocol.ts'
import { HOST_ADDRESS } from './names.ts'

export const RESOLV_CONF = '/etc/resolv.conf'
/** The limit of glibc's resolver, MAXNS. */
const UPSTREAMS_MAX = 3

export function parseResolvConf(text: string): Upstream[] {
  return text
    .split('\n')
    .flatMap((line) => /^\s*nameserver\s+(\S+)/.exec(line)?.[1] ?? [])
    .filter((address) => isIP(address.split('%')[0]!) !== 0 && address !== HOST_ADDRESS)
    .slice(0, UPSTREAMS_MAX)
    .map((address) => ({ address, port: 53 }))
}
