/** Addresses that are special for every sandbox. */

/**
 * Closed to sandboxes whatever their rules allow, unless both a rule and the operator open them: private, shared,
 * loopback, link-local (with the metadata service of clouds), multicast and reserved. 198.18.0.0/15, the block for
 * benchmarks (RFC 2544), must stay open: tests use it as their internet.
 */
export const CLOSED_RANGES = [
  '0.0.0.0/8',
  '10.0.0.0/8',
  '100.64.0.0/10',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '224.0.0.0/3',
]
