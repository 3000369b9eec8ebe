/**
 * Checks that programs on this machine resolve the host names of sandboxes, by a lookup with getaddrinfo. Browsers and curl
 * resolve names below `localhost` themselves; Python, Rust, Go with cgo and Node ask the C library, which needs
 * libnss-myhostname (installed by tools/machine.sh).
 */
import { lookup } from 'node:dns/promises'
import type { Check, CheckResult, Machine } from './check.ts'

export type Lookup = (name: string) => Promise<string[]>

/** The form of a real name, `<ulid>-<port>`. */
const LABEL = '01k0000000000000000000000a-80'
/** A resolver that does not know the name may wait longer for other servers. */
const LOOKUP_LIMIT_MS = 3_000
const FIX =
  'apt-get install libnss-myhostname, then check that the line "hosts:" of /etc/nsswitch.conf contains "myhostname"'

export const ingressNameChecks = ({ env }: Pick<Machine, 'env'>): Check[] => [
  { name: 'ingress names', needed: 'recommended', run: () => checkIngressNames(env, resolveName) },
]

export async function checkIngressNames(env: NodeJS.ProcessEnv, resolve: Lookup): Promise<CheckResult> {
  const domain = (env.WARREN_INGRESS_DOMAIN || 'localhost').replace(/:\d+$/, '')
  const isLocal = domain === 'localhost'
  const fix = isLocal ? FIX : `add a DNS record for *.${domain} with the address of this machine`
  const addresses = await resolve(`${LABEL}.${domain}`).catch(() => [])
  if (addresses.length === 0) return { ok: false, detail: `<id>-<port>.${domain} does not resolve`, fix }
  const detail = `<id>-<port>.${domain} is ${addresses.join(', ')}`
  return !isLocal || addresses.every(isLoopback) ? { ok: true, detail } : { ok: false, detail, fix }
}

const isLoopback = (address: string): boolean => address === '::1' || address.startsWith('127.')

async function resolveName(name: string): Promise<string[]> {
  const timeout = Promise.withResolvers<never>()
  const timer = setTimeout(() => timeout.reject(new Error(`${name} was not resolved in time`)), LOOKUP_LIMIT_MS)
  try {
    const found = await Promise.race([lookup(name, { all: true }), timeout.promise])
    return found.map(({ address }) => address)
  } finally {
    clearTimeout(timer)
  }
}
