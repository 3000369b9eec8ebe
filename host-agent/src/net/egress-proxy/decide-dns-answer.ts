/**
 * Decides the answer to a sandbox's DNS query. Names of members of its private networks come first, and only members can
 * resolve them. If the sandbox has an allowlist, any name that is not on it gets NXDOMAIN, whatever the record type, and
 * the query is not forwarded: a forwarded query would be a way to send data out.
 *
 * Allowed names have no IPv6 address, because IPv6 is closed, and no HTTPS record: it would make clients use QUIC, or an
 * encrypted ClientHello that the proxy cannot read.
 */
import { MEMBER_DOMAIN } from '../names.ts'
import { allowsName } from '../policy.ts'
import {
  CLASS_IN,
  type Query,
  RCODE,
  renderAddresses,
  renderEmptyResponse,
  TYPE,
  withoutAdditionalRecords,
} from './dns/message.ts'
import type { DnsDecision } from './dns/server.ts'
import type { SandboxEgress } from './sandbox-egress.ts'

/** Short, because members join and leave. */
const MEMBER_TTL_SECONDS = 5
const TYPES_WITHOUT_RECORDS: ReadonlySet<number> = new Set([TYPE.AAAA, TYPE.SVCB, TYPE.HTTPS])

export function decideDnsAnswer(sandbox: SandboxEgress | undefined, query: Query, packet: Buffer): DnsDecision {
  if (sandbox === undefined) return { respond: renderEmptyResponse(query, RCODE.REFUSED) }
  const { policy } = sandbox
  const { name, type } = query
  const isInternetClass = query.class === CLASS_IN
  const members = isInternetClass && Object.hasOwn(policy.names, name) ? policy.names[name] : undefined
  if (members !== undefined) {
    return { respond: renderAddresses(query, type === TYPE.A ? members : [], MEMBER_TTL_SECONDS) }
  }
  // Names of private networks are never sent to the name servers of the host.
  const isSingleLabel = !name.includes('.') && (type === TYPE.A || type === TYPE.AAAA)
  const isMemberName = isSingleLabel || name.endsWith(`.${MEMBER_DOMAIN}`)
  if (policy.open) {
    return isMemberName ? { respond: renderEmptyResponse(query, RCODE.NXDOMAIN) } : { forward: packet }
  }
  if (!isInternetClass || !allowsName(policy, name)) {
    sandbox.recordRefusal({ via: 'dns', destination: name, protocol: 'udp', port: 53 }, 'not_allowed')
    return { respond: renderEmptyResponse(query, RCODE.NXDOMAIN) }
  }
  if (TYPES_WITHOUT_RECORDS.has(type)) return { respond: renderEmptyResponse(query, RCODE.NOERROR) }
  return { forward: withoutAdditionalRecords(query) }
}
