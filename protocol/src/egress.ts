/**
 * Outbound allowlists of sandboxes. An empty list, null or a list that contains `*` allows everything; any other list
 * allows only what it names. Lists are stored and returned as given; the host enforces the parsed rules.
 */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'
import { optionalNull } from './optional-null.ts'

/** Each rule costs work in the firewall or the resolver of the host for the whole life of the sandbox. */
export const EGRESS_RULES_MAX = 1024

export const EgressRules = Type.Array(Type.String(), {
  maxItems: EGRESS_RULES_MAX,
  description:
    'Allowed destinations: `host`, `host:80`, `host:443`, `*.host`, `ip`, `ip:port`, `cidr` or `cidr:port`. An empty list or `*` allows everything; `none` as the only entry allows nothing.',
})
export type EgressRules = Static<typeof EgressRules>

export const EgressPutBody = Type.Object({ egress: optionalNull(EgressRules) })
export type EgressPutBody = Static<typeof EgressPutBody>

/** In the response to a request with an egress list. */
export const EgressWarnings = Type.Optional(
  Type.Array(Type.String(), {
    description: 'Rules that were accepted but open less than they name, and why. Absent when there are none.',
  }),
)

export const EgressView = Type.Object({ id: SandboxId, egress: Type.Array(Type.String()), warnings: EgressWarnings })
export type EgressView = Static<typeof EgressView>

export type EgressRule =
  | { kind: 'all' }
  | { kind: 'none' }
  /** With `subdomains`, names at any depth below `host`, but not `host` itself. */
  | { kind: 'host'; host: string; subdomains: boolean; ports: readonly number[] }
  /** A single address is a block of prefix 32. No `port` means all ports, and all protocols. */
  | { kind: 'block'; address: string; prefix: number; port?: number }

/** Ports whose traffic names its host: the Host header and the TLS server name. */
const HOST_PORTS = [80, 443] as const

export const isOpenEgress = (rules: readonly string[] | null | undefined): boolean =>
  !rules || rules.length === 0 || rules.includes('*')

/** The rules, or an error text that names the first invalid one. */
export function parseEgressRules(rules: readonly string[]): EgressRule[] | string {
  const parsed: EgressRule[] = []
  for (const text of rules) {
    const rule = parseEgressRule(text)
    if (typeof rule === 'string') return rule
    if (rule.kind === 'none' && rules.length > 1) return '"none" must be the only rule'
    parsed.push(rule)
  }
  return parsed
}

/** The rule, or an error text that names it. */
export function parseEgressRule(text: string): EgressRule | string {
  const rule = text.toLowerCase()
  if (rule === '*') return { kind: 'all' }
  if (rule === 'none') return { kind: 'none' }
  const fail = (why: string) => `${JSON.stringify(text.slice(0, 100))}: ${why}`
  if (rule.includes('://')) return fail('give the host alone, without a scheme or a path')
  if (/^\[|:.*:/.test(rule)) return fail('IPv6 is not supported, sandboxes have IPv4 only')

  const [target = '', portText] = rule.split(':')
  const port = portText === undefined ? undefined : parsePort(portText)
  if (Number.isNaN(port)) return fail('the port must be a number from 1 to 65535')
  const [addressText = '', prefixText, ...more] = target.split('/')
  const address = parseIpv4(addressText)
  if (address !== undefined) {
    const prefix = prefixText === undefined ? 32 : parsePrefix(prefixText)
    if (Number.isNaN(prefix) || more.length > 0) return fail('the prefix length must be a number from 0 to 32')
    const block = { kind: 'block' as const, address: renderIpv4(address & maskOf(prefix)), prefix }
    return port === undefined ? block : { ...block, port }
  }

  if (prefixText !== undefined) return fail('a block needs an IPv4 address before the slash, a host takes no path')
  const subdomains = target.startsWith('*.')
  const host = (subdomains ? target.slice(2) : target).replace(/\.$/, '')
  const why = checkHost(host)
  if (why) return fail(why)
  if (port === undefined) return { kind: 'host', host, subdomains, ports: HOST_PORTS }
  if (port === 80 || port === 443) return { kind: 'host', host, subdomains, ports: [port] }
  return fail('a host may have port 80 or 443 only, other ports need an IP or CIDR rule')
}

const LINK_LOCAL_PREFIX = 16

/**
 * Whether the rule is about the address at which sandboxes see their host, and so opens the API there. A block around it
 * counts if it is link-local; a wider one, such as 0.0.0.0/0, opens public addresses only.
 */
export function namesHost(rule: EgressRule, hostAddress: string): rule is EgressRule & { kind: 'block' } {
  if (rule.kind !== 'block' || rule.prefix < LINK_LOCAL_PREFIX) return false
  return rule.address === renderIpv4((parseIpv4(hostAddress) ?? 0) & maskOf(rule.prefix))
}

function checkHost(host: string): string | undefined {
  if (/[^\x20-\x7e]/.test(host)) return 'write an international name in its xn-- form'
  if (host.includes('*')) return 'a wildcard must be the whole rule or its first label, as in *.example.com'
  const labels = host.split('.')
  if (host.length > 253 || !labels.every((label) => /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/.test(label))) {
    return 'is not a hostname, an IPv4 address or a CIDR block'
  }
  // Most programs read such a name as an address: 10.1 as 10.0.0.1.
  if (/^(\d+|0x[0-9a-f]*)$/.test(labels.at(-1)!)) return 'is not an IPv4 address: four numbers from 0 to 255'
  return undefined
}

const parsePort = (text: string): number => parseNumber(text, 1, 65_535)
const parsePrefix = (text: string): number => parseNumber(text, 0, 32)

/** NaN unless it is a plain number in range. Leading zeros are refused: some programs read them as octal. */
function parseNumber(text: string, min: number, max: number): number {
  if (!/^(0|[1-9]\d{0,4})$/.test(text)) return Number.NaN
  const number = Number(text)
  return number >= min && number <= max ? number : Number.NaN
}

function parseIpv4(text: string): number | undefined {
  const bytes = text.split('.').map((part) => parseNumber(part, 0, 255))
  if (bytes.length !== 4 || bytes.some(Number.isNaN)) return undefined
  return bytes.reduce((address, byte) => address * 256 + byte, 0)
}

const renderIpv4 = (address: number): string => [24, 16, 8, 0].map((shift) => (address >>> shift) & 255).join('.')

/** JavaScript shifts modulo 32, so a prefix of 0 needs its own case. */
const maskOf = (prefix: number): number => (prefix === 0 ? 0 : -1 << (32 - prefix))
