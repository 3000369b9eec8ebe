/** Addresses that are special for every sandbox. */

/**
 * Closed to sandboxes whatever their rules allow, unless both a rule and the operator open them: private, shared,
 * loopback, link-local (with the metadata service of clouds), for benchmarks (RFC 2544), multicast and reserved.
 * 168.63.129.16 is the platform's service for virtual machines in Azure. The addresses and networks of the host itself are
 * closed as well, but only the host knows them.
 */
export const CLOSED_RANGES = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '168.63.129.16/32',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '224.0.0.0/3',
]
