/** The ports of EXPOSE: `80`, `53/udp`, `8000-8010`. A part before a colon, meant for the host, is ignored. */
import { Problem, quote } from './errors.ts'

export type PortRange = { first: number; last: number; protocol: 'tcp' | 'udp' | 'sctp' }

export function parsePortRange(word: string): PortRange {
  const [, low = '', high = low, protocol = 'tcp'] =
    /^(?:[^/]*:)?(\d{1,5})(?:-(\d{1,5}))?(?:\/(tcp|udp|sctp))?$/i.exec(word) ?? []
  const [first, last] = [Number(low), Number(high)]
  if (low === '' || last > 65_535 || first > last) {
    throw new Problem(`${quote(word)} is not a port; write 80, 53/udp or 8000-8010`)
  }
  return { first, last, protocol: protocol.toLowerCase() as PortRange['protocol'] }
}
