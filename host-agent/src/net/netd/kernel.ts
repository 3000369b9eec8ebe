/** What netd holds open for its whole life, all of it in the host's namespace. */
import { writeFileSync } from 'node:fs'
import { HostNamespace } from '../../ffi/network-namespace.ts'
import { Nft } from '../../ffi/nftables.ts'
import { hasCode } from '../../ffi/system-call.ts'
import { hostTable, proxyTable } from '../names.ts'
import { type Link, listLinks, listRoutes, parseLink, parseRoute, type Route } from './netlink/route.ts'
import { NetlinkSocket } from './netlink/socket.ts'

export type Kernel = { instance: string; host: HostNamespace; routes: NetlinkSocket; nft: Nft }

export const openKernel = (instance: string): Kernel => ({
  instance,
  host: new HostNamespace(),
  routes: new NetlinkSocket(),
  nft: new Nft(),
})

export const readLinks = (kernel: Kernel): Link[] => kernel.routes.dump('list links', listLinks()).map(parseLink)

export const readRoutes = (kernel: Kernel): Route[] =>
  kernel.routes.dump('list routes', listRoutes()).flatMap((response) => parseRoute(response) ?? [])

export const tableNames = (kernel: Kernel): string[] =>
  kernel.nft.list('tables ip').map((one) => (one.table as { name: string }).name)

export const hasHostTable = (kernel: Kernel): boolean => tableNames(kernel).includes(hostTable(kernel.instance))

export const hasProxyTable = ({ nft, instance }: Kernel): boolean =>
  nft.list('tables inet').some((one) => (one.table as { name: string }).name === proxyTable(instance))

/** In the namespace of this thread. Does nothing on a kernel without IPv6. */
export function disableIpv6(interfaceName: string): void {
  try {
    writeFileSync(`/proc/sys/net/ipv6/conf/${interfaceName}/disable_ipv6`, '1')
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
  }
}
