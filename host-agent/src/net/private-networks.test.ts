/** Who reaches whom in private networks, by address and by name: always exactly what the membership says. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmNetwork } from '@warren/protocol'
import { ether, ipv4, PROTOCOL, ping, pongs } from './testing/frames.ts'
import { cannotRun } from './testing/host.ts'
import { GUEST_MAC, type Sandbox, World, withRules } from './testing/test-network.ts'

const NETWORKS = ['A', 'B', 'C'].map((letter) => `net-01K000000000000000000000${letter}0`)
const SANDBOXES = 6
const ROUNDS = 10
/** Answers to anybody on its own slot, so its answer says that the pings before it were dealt with. */
const GATEWAY = '172.30.0.1'
const GATEWAY_NUMBER = 99

let world: World
/** Which sandboxes are in which network, by number. */
const members: Set<number>[] = NETWORKS.map(() => new Set())
const names = Array.from({ length: SANDBOXES }, (_, index) => `box-${index}`)
const allowed = new Map<number, Set<string>>()
let revision = 0
let round = 0

if (cannotRun === false) {
  before(async () => {
    world = await World.open({ poolSize: SANDBOXES })
    // Half of them may reach nothing else: rules do not filter peers.
    for (let index = 0; index < SANDBOXES; index++) await world.sandbox(ipOf(index), objectOf(index))
  })
  after(() => world?.close())
}

const ipOf = (index: number): string => `100.64.1.${index + 1}`

function objectOf(index: number): HostVmNetwork {
  const networks = NETWORKS.flatMap((id, network) =>
    members[network]!.has(index)
      ? [{ id, members: [...members[network]!].map((one) => ({ ip: ipOf(one), name: names[one]! })) }]
      : [],
  )
  return withRules(index % 2 === 0 ? ['none'] : [], { networks, revision })
}

const tell = (indexes: Iterable<number>) =>
  Promise.all([...indexes].map((index) => world.network.slots.change(world.sandboxes[index]!.slot, objectOf(index))))

const share = (one: number, other: number): boolean => members.some((set) => set.has(one) && set.has(other))

test('after every join and leave, all pairs reach each other exactly as members do', { skip: cannotRun }, async () => {
  for (let step = 0; step < ROUNDS; step++) {
    const network = members[Math.floor(Math.random() * members.length)]!
    const index = Math.floor(Math.random() * SANDBOXES)
    revision++
    if (network.delete(index)) {
      // The one that leaves is told first; the others need not know yet for it to be out.
      await tell([index])
      await checkAllPairs()
      await tell(network)
    } else {
      network.add(index)
      await tell(network)
      await checkAllPairs()
    }
  }
  assert.ok(revision > 0)
})

test('membership outlives the host agent', { skip: cannotRun }, async () => {
  members[0]!.clear()
  for (const index of [0, 1, 2]) members[0]!.add(index)
  revision++
  await tell(names.keys())

  await world.restartHostAgent()

  await checkAllPairs()
  assert.deepEqual(await ask(world.sandboxes[0]!, 'box-1'), [`NOERROR ${ipOf(1)}`])
})

test('names are those of the members of its own networks, and the same name in two never crosses', {
  skip: cannotRun,
}, async () => {
  revision++
  const network = (id: string, name: string, entries: Record<string, number>) => ({
    id,
    name,
    members: Object.entries(entries).map(([name, index]) => ({ name, ip: ipOf(index) })),
  })
  const inA = network(NETWORKS[0]!, 'blue', { me: 0, db: 1 })
  const inB = network(NETWORKS[1]!, 'green', { me: 2, db: 3 })
  const change = (index: number, egress: string[], networks: HostVmNetwork['networks']) =>
    world.network.slots.change(world.sandboxes[index]!.slot, withRules(egress, { networks, revision }))
  await change(0, ['none'], [inA])
  await change(2, [], [inB])
  await change(4, [], [])
  await change(5, ['none'], [inA, inB])

  assert.deepEqual(await ask(world.sandboxes[0]!, 'db', 'DB', 'db.example'), [
    `NOERROR ${ipOf(1)}`,
    `NOERROR ${ipOf(1)}`,
    'NXDOMAIN',
  ])
  assert.deepEqual(await ask(world.sandboxes[2]!, 'db', 'me', 'box-0'), [
    `NOERROR ${ipOf(3)}`,
    `NOERROR ${ipOf(2)}`,
    'NXDOMAIN',
  ])
  assert.deepEqual(await ask(world.sandboxes[4]!, 'db', 'me'), ['NXDOMAIN', 'NXDOMAIN'])
  assert.deepEqual(await ask(world.sandboxes[5]!, 'db', 'db.blue.fc.local', 'DB.green.fc.local'), [
    `NOERROR ${ipOf(1)} ${ipOf(3)}`,
    `NOERROR ${ipOf(1)}`,
    `NOERROR ${ipOf(3)}`,
  ])
  assert.deepEqual(await ask(world.sandboxes[2]!, 'db.green.fc.local', 'db.blue.fc.local'), [
    `NOERROR ${ipOf(3)}`,
    'NXDOMAIN',
  ])
  assert.ok(!(await world.internet.seen()).some((one) => /^asked (db|me|box-\d)\b(?!\.example)/.test(one)))
})

const ask = (sandbox: Sandbox, ...questions: string[]) =>
  sandbox.guest.probe(...questions.map((name) => ({ ask: name, type: 1 })))

/** Everybody pings everybody and then its gateway; answers of earlier rounds are looked at again as well. */
async function checkAllPairs(): Promise<void> {
  round++
  for (const [index, { guest, gatewayMac }] of world.sandboxes.entries()) {
    const to = [...names.keys()].filter((other) => other !== index).map((other) => ({ ip: ipOf(other), number: other }))
    await guest.inject(
      [...to, { ip: GATEWAY, number: GATEWAY_NUMBER }].map(({ ip, number }) =>
        ether({
          to: gatewayMac,
          from: GUEST_MAC,
          body: ipv4({ to: ip, protocol: PROTOCOL.ICMP, body: ping(round * 100 + number) }),
        }),
      ),
    )
  }
  for (const [index, { guest }] of world.sandboxes.entries()) {
    const peers = [...names.keys()].filter((other) => other !== index && share(index, other))
    const expected = allowed.get(index) ?? new Set()
    for (const peer of peers) expected.add(`${ipOf(peer)} ${round * 100 + peer}`)
    expected.add(`${GATEWAY} ${round * 100 + GATEWAY_NUMBER}`)
    allowed.set(index, expected)
    const answers = async () => new Set(pongs(await guest.received()).map(({ from, number }) => `${from} ${number}`))
    await until(async () => (await answers()).isSupersetOf(expected))
    assert.deepEqual([...(await answers()).difference(expected)], [], `answers to ${names[index]} in round ${round}`)
  }
}
