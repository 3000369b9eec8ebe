/**
 * The network of sandboxes without VMs: guests are network namespaces, so what is measured is the host's cost. An
 * emulated VM sends a fraction of what the host can carry.
 */
import { setTimeout as delay } from 'node:timers/promises'
import { compareTimes, rounds, type Timed } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { type HostNetwork, hostNetwork } from '../net/client.ts'
import type { Measurement, Row, Run } from '../row.ts'

const OTHERS = 1_000
const SET_UP_ROUNDS = 40
const CLAIM_ROUNDS = 12
const RULES_ROUNDS = 30
const SEND_ROUNDS = 8
const MANY_ROUNDS = 20
/** The kernel frees the network of the previous turn, and holds its locks meanwhile. */
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
  what: 'the same torn down: route, flows, namespace; the kernel frees the rest afterwards, as with ip netns del',
  unit: 'ms',
  baseline: 'ip netns del',
  target: { p50: '<=', value: 5 },
  measure: (run) => measureSetUp(run, 'tearDown'),
  comparison: NOT_COMPARABLE,
}

export const netClaimRow: Row = {
  name: 'net-claim',
  what: 'a ready slot gets an address and its rules, in the kernel and the egress proxy; against setup on demand',
  unit: 'ms',
  baseline: 'set up on demand',
  target: { p50: '<=', value: 1 },
  measure: (run) =>
    withNet(run, (net) =>
      compareTimes(
        run,
        async () => (await net('claim')).map(succeeded),
        async () => succeeded((await net('setUp')).setUp),
        { rounds: rounds(run, CLAIM_ROUNDS), settle: () => waitUntilFreed(run) },
      ),
    ),
  comparison: NOT_COMPARABLE,
}

export const netRulesRow: Row = {
  name: 'net-rules-1000',
  what: '1,000 egress rules applied to a running sandbox in one transaction, against nft -f of the same rules',
  unit: 'ms',
  baseline: 'nft -f',
  measure: (run) =>
    withNet(run, (net) =>
      compareTimes(
        run,
        async () => succeeded(await net('applyRules')),
        async () => succeeded(await net('applyRulesWithNft')),
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
        () => net('send', { route: 'open' }),
        () => net('sendFromHost'),
      ),
    ),
  comparison: NOT_COMPARABLE,
}

export const netOutRulesRow: Row = {
  name: 'net-out-rules',
  what: 'the same with 1,000 address rules',
  unit: 'MB/s',
  baseline: OPEN,
  measure: (run) => measureRoute(run, 'rules'),
  comparison: NOT_COMPARABLE,
}

export const netOutProxyRow: Row = {
  name: 'net-out-proxy',
  what: 'the same with a rule by name, through the egress proxy',
  unit: 'MB/s',
  baseline: OPEN,
  measure: (run) => measureRoute(run, 'proxy'),
  comparison: NOT_COMPARABLE,
}

export const net1000AskRow: Row = {
  name: 'net-1000-ask',
  what: `a DNS query of one sandbox, with ${OTHERS} others that have 120 rules each, against alone`,
  unit: 'ms',
  baseline: 'alone, before',
  measure: (run) => measureMany(run, 'resolve'),
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
  what: `claims of the last 100 of ${OTHERS} sandboxes with 120 rules, one after the other, against the first 100`,
  unit: 'ms',
  baseline: 'the first 100',
  measure: async (run) => ({ ...(await run.open(manySandboxes)).claims, ok: 1 }),
  comparison: NOT_COMPARABLE,
}

const FIRST_SANDBOX = {
  resolve: (net: HostNetwork) => net('resolve'),
  change: async (net: HostNetwork) => [await net('changeFirst')],
}

/**
 * Measures the first sandbox alone and then adds the others, which cannot be added and removed with every turn. The
 * rows about many sandboxes share it.
 */
const manySandboxes = async (run: Run) => {
  const net = await run.open(hostNetwork)
  const alone = { resolve: await sample(run, net, 'resolve'), change: await sample(run, net, 'change') }
  const first = await net('addOthers', { upTo: 100 })
  for (let upTo = 200; upTo <= OTHERS - 100; upTo += 100) {
    await net('addOthers', { upTo })
    run.report(`  added ${upTo} sandboxes`)
  }
  return { alone, claims: { ours: await net('addOthers', { upTo: OTHERS }), baseline: first } }
}

async function sample(run: Run, net: HostNetwork, what: keyof typeof FIRST_SANDBOX): Promise<number[]> {
  const samples: number[] = []
  for (let round = 0; round < rounds(run, MANY_ROUNDS); round++) samples.push(...(await FIRST_SANDBOX[what](net)))
  return samples
}

async function measureMany(run: Run, what: keyof typeof FIRST_SANDBOX): Promise<Measurement> {
  const { alone } = await run.open(manySandboxes)
  return { ours: await sample(run, await run.open(hostNetwork), what), baseline: alone[what], ok: 1 }
}

const withNet = async (run: Run, measure: (net: HostNetwork) => Promise<Measurement>): Promise<Measurement> =>
  measure(await run.open(hostNetwork))

const succeeded = (ms: number): Timed => ({ ms, ok: true })
const waitUntilFreed = (run: Run): Promise<void> => delay(FREE_MS, undefined, { signal: run.signal })

const measureSetUp = (run: Run, part: 'setUp' | 'tearDown'): Promise<Measurement> =>
  withNet(run, (net) =>
    compareTimes(
      run,
      async () => succeeded((await net('setUp'))[part]),
      async () => succeeded((await net('setUpWithCommands'))[part]),
      { rounds: rounds(run, SET_UP_ROUNDS), settle: () => waitUntilFreed(run) },
    ),
  )

const measureRoute = (run: Run, route: 'rules' | 'proxy'): Promise<Measurement> =>
  withNet(run, (net) =>
    measureRates(
      run,
      () => net('send', { route }),
      () => net('send', { route: 'open' }),
    ),
  )

async function measureRates(
  run: Run,
  ours: () => Promise<number>,
  baseline: () => Promise<number>,
): Promise<Measurement> {
  return { ...(await interleave(run, { ours, baseline }, { rounds: rounds(run, SEND_ROUNDS) })), ok: 1 }
}
