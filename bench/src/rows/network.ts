/**
 * The network of sandboxes, without the sandboxes: guests are namespaces at the kernel's speed, so what is measured is
 * the host's own cost. Under emulation a guest sends a fraction of it.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { compareTimes, rounds, type Timed } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { type NetWorld, netWorld } from '../net/world.ts'
import type { Measurement, Row, Run } from '../row.ts'

const OTHERS = 1_000
const SET_UP_ROUNDS = 40
const CLAIM_ROUNDS = 12
const RULES_ROUNDS = 30
const POUR_ROUNDS = 8
const MANY_ROUNDS = 20
/** The kernel frees what the turn before had, and holds its locks meanwhile. */
const FREE_MS = 80

const BY_COMMANDS = 'ip and nft, 4 processes'
const OPEN = 'the same guest, open'

const NOT_COMPARABLE = { whyNot: "it runs this checkout's host network code in the bench, without an API" }

export const netSetUpRow: Row = {
  name: 'net-setup',
  what: 'a namespace with tap, links, address, routes, rules and counters for one sandbox, without the pool',
  unit: 'ms',
  baseline: BY_COMMANDS,
  target: { p50: '<=', value: 5 },
  measure: (run) => measureSetUp(run, 'setUp'),
  comparison: NOT_COMPARABLE,
}

export const netTearDownRow: Row = {
  name: 'net-teardown',
  what: 'the same taken down: route, flows, namespace; the kernel frees the rest by itself, as after ip netns del',
  unit: 'ms',
  baseline: 'ip netns del',
  target: { p50: '<=', value: 5 },
  measure: (run) => measureSetUp(run, 'tearDown'),
  comparison: NOT_COMPARABLE,
}

export const netClaimRow: Row = {
  name: 'net-claim',
  what: 'a ready slot given an address with its rules in force, in the kernel and at the gate; against making it then',
  unit: 'ms',
  baseline: 'set up when asked for',
  target: { p50: '<=', value: 1 },
  measure: (run) =>
    withNet(run, (net) =>
      compareTimes(
        run,
        async () => (await net('claim')).map(right),
        async () => right((await net('setUp')).setUp),
        { rounds: rounds(run, CLAIM_ROUNDS), settle: () => free(run) },
      ),
    ),
  comparison: NOT_COMPARABLE,
}

export const netRulesRow: Row = {
  name: 'net-rules-1000',
  what: '1,000 egress rules applied to a sandbox that runs, in one transaction; against nft -f of the same',
  unit: 'ms',
  baseline: 'nft -f',
  measure: (run) =>
    withNet(run, (net) =>
      compareTimes(
        run,
        async () => right(await net('applyRules')),
        async () => right(await net('applyRulesByCommand')),
        { rounds: rounds(run, RULES_ROUNDS) },
      ),
    ),
  comparison: NOT_COMPARABLE,
}

export const netOpenRow: Row = {
  name: 'net-out',
  what: '100 MB from an open guest through its slot and the host to a server, against the same from the host itself',
  unit: 'MB/s',
  baseline: 'from the host itself',
  measure: (run) =>
    withNet(run, (net) =>
      measureRates(
        run,
        () => net('pour', { way: 'open' }),
        () => net('pourFromHost'),
      ),
    ),
  comparison: NOT_COMPARABLE,
}

export const netOutRulesRow: Row = {
  name: 'net-out-rules',
  what: 'the same with 1,000 address rules',
  unit: 'MB/s',
  baseline: OPEN,
  measure: (run) => measureWay(run, 'rules'),
  comparison: NOT_COMPARABLE,
}

export const netOutProxyRow: Row = {
  name: 'net-out-proxy',
  what: 'the same by name, through the proxy',
  unit: 'MB/s',
  baseline: OPEN,
  measure: (run) => measureWay(run, 'proxy'),
  comparison: NOT_COMPARABLE,
}

export const net1000AskRow: Row = {
  name: 'net-1000-ask',
  what: `a question of one sandbox for a name, with ${OTHERS} others that have 120 rules each, against alone`,
  unit: 'ms',
  baseline: 'alone, before',
  measure: (run) => measureMany(run, 'ask'),
  comparison: NOT_COMPARABLE,
}

export const net1000ChangeRow: Row = {
  name: 'net-1000-change',
  what: `new rules for one sandbox, with ${OTHERS} others, against alone`,
  unit: 'ms',
  baseline: 'alone, before',
  measure: (run) => measureMany(run, 'change'),
  comparison: NOT_COMPARABLE,
}

export const net1000ClaimRow: Row = {
  name: 'net-1000-claim',
  what: `the last 100 of ${OTHERS} sandboxes with 120 rules that come one after the other, against the first 100`,
  unit: 'ms',
  baseline: 'the first 100',
  measure: async (run) => ({ ...(await run.open(crowd)).claims, ok: 1 }),
  comparison: NOT_COMPARABLE,
}

const FIRSTS = {
  ask: (net: NetWorld) => net('ask'),
  change: async (net: NetWorld) => [await net('changeFirst')],
}

/** Alone first and among many then: the others cannot come and go with every turn. Shared by the rows about them. */
const crowd = async (run: Run) => {
  const net = await run.open(netWorld)
  const alone = { ask: await sample(run, net, 'ask'), change: await sample(run, net, 'change') }
  const first = await net('addOthers', { upTo: 100 })
  for (let upTo = 200; upTo <= OTHERS - 100; upTo += 100) {
    await net('addOthers', { upTo })
    run.say(`  ${upTo} sandboxes have their rules`)
  }
  return { alone, claims: { ours: await net('addOthers', { upTo: OTHERS }), baseline: first } }
}

async function sample(run: Run, net: NetWorld, what: keyof typeof FIRSTS): Promise<number[]> {
  const taken: number[] = []
  for (let round = 0; round < rounds(run, MANY_ROUNDS); round++) taken.push(...(await FIRSTS[what](net)))
  return taken
}

async function measureMany(run: Run, what: keyof typeof FIRSTS): Promise<Measurement> {
  const { alone } = await run.open(crowd)
  return { ours: await sample(run, await run.open(netWorld), what), baseline: alone[what], ok: 1 }
}

const withNet = async (run: Run, measure: (net: NetWorld) => Promise<Measurement>): Promise<Measurement> =>
  measure(await run.open(netWorld))

const right = (ms: number): Timed => ({ ms, ok: true })
const free = (run: Run): Promise<void> => delay(FREE_MS, undefined, { signal: run.signal })

const measureSetUp = (run: Run, part: 'setUp' | 'tearDown'): Promise<Measurement> =>
  withNet(run, (net) =>
    compareTimes(
      run,
      async () => right((await net('setUp'))[part]),
      async () => right((await net('setUpByCommands'))[part]),
      { rounds: rounds(run, SET_UP_ROUNDS), settle: () => free(run) },
    ),
  )

const measureWay = (run: Run, way: 'rules' | 'proxy'): Promise<Measurement> =>
  withNet(run, (net) =>
    measureRates(
      run,
      () => net('pour', { way }),
      () => net('pour', { way: 'open' }),
    ),
  )

async function measureRates(
  run: Run,
  ours: () => Promise<number>,
  baseline: () => Promise<number>,
): Promise<Measurement> {
  return { ...(await interleave(run, { ours, baseline }, { rounds: rounds(run, POUR_ROUNDS) })), ok: 1 }
}
