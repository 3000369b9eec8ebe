/** The names and addresses in the internet of the tests. */

/** Addresses of web servers that answer with the address and the name of the request. */
export const NAMED_PREFIX = '192.0.2.'
export const SHOP = '192.0.2.6'
export const WILD = '192.0.2.7'
export const EVIL = '192.0.2.66'
/** Addresses for rules by address. */
export const RULED = ['203.0.113.9', '203.0.113.10', '203.0.113.129', '203.0.113.130']
const ELSEWHERE = '198.51.100.7'

export function resolveName(name: string): string[] {
  if (name.endsWith('.wild.example') || name === 'wild.example') return [WILD]
  return NAMES[name] ?? [ELSEWHERE]
}

const NAMES: Record<string, string[]> = {
  'shop.example': [SHOP],
  'plain.example': [SHOP],
  'xn--bcher-kva.example': [SHOP],
  'evil.example': [EVIL],
  'rebind.example': ['10.9.9.9'],
  'metadata.example': ['169.254.169.254'],
  'mixed.example': ['10.9.9.9', SHOP],
  'host.example': ['198.51.100.130'],
  'sandbox.example': ['100.64.0.11'],
}
