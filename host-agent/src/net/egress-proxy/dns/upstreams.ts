/** Where the host asks: the name servers of /etc/resolv.conf, read again now and then, as they change with the network. */
import { readFile } from 'node:fs/promises'
import { isIP } from 'node:net'
import type { Upstream } from '../../egress-proxy-protocol.ts'
import { HOST_ADDRESS } from '../../names.ts'

const RESOLV_CONF = '/etc/resolv.conf'
const KEEP_MS = 5_000
/** The resolver's own number, MAXNS. */
const UPSTREAMS_MAX = 3

export function parseResolvConf(text: string): Upstream[] {
  return text
    .split('\n')
    .flatMap((line) => /^\s*nameserver\s+(\S+)/.exec(line)?.[1] ?? [])
    .filter((address) => isIP(address.split('%')[0]!) !== 0 && address !== HOST_ADDRESS)
    .slice(0, UPSTREAMS_MAX)
    .map((address) => ({ address, port: 53 }))
}

/** An unreadable file keeps what was known: the network is being changed under us. */
export function hostUpstreams(now: () => number = Date.now): () => Promise<Upstream[]> {
  let known: Upstream[] = []
  let readAt = Number.NEGATIVE_INFINITY
  return async () => {
    if (now() - readAt < KEEP_MS) return known
    readAt = now()
    known = await readFile(RESOLV_CONF, 'utf8').then(parseResolvConf, () => known)
    return known
  }
}
