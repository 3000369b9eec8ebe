/** The name servers of the host, from /etc/resolv.conf. The file is read again regularly, because it changes with the network. */
import { readFile } from 'node:fs/promises'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { parseResolvConf, RESOLV_CONF } from '../../resolv-conf.ts'

const CACHE_MS = 5_000

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
