/** What the rules of an egress list cannot open, because private addresses are closed unless the operator opens them. */
import { CLOSED_RANGES } from './closed-ranges.ts'
import { type EgressRule, namesHost, parseEgressRule } from './egress.ts'

/** The first address of the closed range that sandboxes have their addresses from. */
const SANDBOXES = '100.64.0.0'
const SETTING = 'WARREN_EGRESS_PRIVATE_CIDRS'

type Block = Extract<EgressRule, { kind: 'block' }>
/** `hostAddress`: the address of the host for sandboxes, which a rule opens. `privateCidrs`: what the operator lets rules open. */
export type EgressSettings = { hostAddress: string; privateCidrs: readonly string[] }
const CLOSED_BLOCKS = CLOSED_RANGES.flatMap((text) => findBlock(text) ?? [])

/** One text for each rule that opens less than it names. */
export function listEgressWarnings(rules: readonly string[], settings: EgressSettings): string[] {
  const openable = settings.privateCidrs.flatMap((text) => findBlock(text) ?? []) // The host agent refuses an invalid setting.
  return rules.flatMap((text) => {
    const block = findBlock(text)
    if (block === undefined || namesHost(block, settings.hostAddress)) return []
    return warnAbout(text, block, openable) ?? []
  })
}

function warnAbout(text: string, rule: Block, openable: readonly Block[]): string | undefined {
  const name = JSON.stringify(text)
  const closed = CLOSED_BLOCKS.find((block) => contains(block, rule))
  if (closed === undefined) {
    const hasClosed = CLOSED_BLOCKS.some((block) => contains(rule, block))
    return hasClosed ? `${name} opens only the public addresses in it: ${explain(openable)}` : undefined
  }
  if (openable.some((block) => contains(block, rule))) return undefined
  const hint =
    closed.address === SANDBOXES ? '; sandboxes reach each other through private networks, without a rule' : ''
  return `${name} opens nothing: ${explain(openable)}${hint}`
}

function explain(openable: readonly Block[]): string {
  const except = openable.map(({ address, prefix }) => `${address}/${prefix}`).join(', ')
  return `${CLOSED}${except === '' ? '' : ` except ${except}`}, and only the operator can open them (${SETTING})`
}
const CLOSED = 'private, link-local and reserved addresses are closed'

function findBlock(text: string): Block | undefined {
  const rule = parseEgressRule(text)
  return typeof rule === 'string' || rule.kind !== 'block' ? undefined : rule
}

/** Two blocks are either disjoint or one contains the other. */
const contains = (outer: Block, inner: Block): boolean =>
  inner.prefix >= outer.prefix && topBits(inner.address, outer.prefix) === topBits(outer.address, outer.prefix)

const topBits = (address: string, count: number): string =>
  address
    .split('.')
    .map((byte) => Number(byte).toString(2).padStart(8, '0'))
    .join('')
    .slice(0, count)
