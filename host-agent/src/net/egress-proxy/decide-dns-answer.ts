/**
 * What a sandbox is told about a name. Names of its private networks come first and are known to it alone. With an
 * allowlist only the names on it exist, for every type of record: a question is also a way to send something out.
 *
 * For allowed names there is no IPv6 address, because IPv6 is closed, and no HTTPS record, which would invite to QUIC
 * and to an encrypted ClientHello that the proxy cannot read.
 */

import { MEMBER_DOMAIN } from '../names.ts'
import { allowsName } from '../policy.ts'
import { CLASS_IN, type Query, RCODE, renderAddresses, renderFailure, TYPE, withoutExtras } from './dns/message.ts'
import type { Verdict } from './dns/server.ts'
import type { Known } from './sandbox.ts'

/** Members come and go. */
const MEMBER_TTL_SECONDS = 5
const UNANSWERED: ReadonlySet<number> = new Set([TYPE.AAAA, TYPE.SVCB, TYPE.HTTPS])

export function judgeQuestion(known: Known | undefined, query: Query, packet: Buffer): Verdict {
  if (known === undefined) return { answer: renderFailure(query, RCODE.REFUSED) }
  const { policy } = known
  const { name, type } = query
  const isIn = query.class === CLASS_IN
  const members = isIn && Object.hasOwn(policy.names, name) ? policy.names[name] : undefined
  if (members !== undefined) {
    return { answer: renderAddresses(query, type === TYPE.A ? members : [], MEMBER_TTL_SECONDS) }
  }
  // Meant for a private network, and nobody else's business.
  const isBare = !name.includes('.') && (type === TYPE.A || type === TYPE.AAAA)
  const isOurs = isBare || name.endsWith(`.${MEMBER_DOMAIN}`)
  if (policy.open) return isOurs ? { answer: renderFailure(query, RCODE.NXDOMAIN) } : { ask: packet }
  if (!isIn || !allowsName(policy, name)) {
    known.refuse({ via: 'dns', destination: name, protocol: 'udp', port: 53 }, 'not_allowed')
    return { answer: renderFailure(query, RCODE.NXDOMAIN) }
  }
  if (UNANSWERED.has(type)) return { answer: renderFailure(query, RCODE.NOERROR) }
  return { ask: withoutExtras(query) }
}
