/** The name servers of the host, from /etc/resolv.conf. The file is read again regularly, because it changes with the network. */
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { HOST_ADDRESS } from '../../names.ts'

const RESOLV_CONF = '/etc/resolv.conf'
const CACHE_MS = 5_000
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

/** While the file cannot be read, the last list stays in use: the network is probably being reconfigured. */
export function hostUpstreams(now: () => number = Date.now): () => Promise<Upstream[]> {
  let upstreams: Upstream[] = []
  let readAt = Number.NEGATIVE_INFINITY
  return async () => {
    if (now() - readAt < CACHE_MS) return upstreams
    readAt = now()
    upstreams = await readFile(RESOLV_CONF, 'utf8').then(parseResolvConf, () => upstreams)
    return upstreams
  }
}
