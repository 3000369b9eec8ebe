/** What this process has counted since it started. */
import type { EgressRefusal } from '@warren/protocol'
import type { EgressProxyCounts } from '../egress-proxy-protocol.ts'

type Via = 'dns' | 'tls' | 'http'

const connections = { http: 0, tls: 0 }
const open = { http: 0, tls: 0 }
const dnsQueries = { local: 0, forwarded: 0 }
const refusals = new Map<string, { via: Via; reason: EgressRefusal; count: number }>()

export const getCounts = (): EgressProxyCounts => ({ connections, open, dnsQueries, refusals: [...refusals.values()] })

/** Returns the function to call when the connection is closed. */
export function countConnection(kind: 'http' | 'tls'): () => void {
  connections[kind]++
  open[kind]++
  return () => {
    open[kind]--
  }
}

export function countRefusal(via: Via, reason: EgressRefusal): void {
  const key = `${via} ${reason}`
  const found = refusals.get(key) ?? { via, reason, count: 0 }
  found.count++
  refusals.set(key, found)
}

export function countDnsQuery(answer: 'local' | 'forwarded'): void {
  dnsQueries[answer]++
}
