/** Which sandboxes reach each other in private networks, by address and by name: exactly those that share a network. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmNetwork } from '@warren/protocol'
import { GUEST_MAC } from './names.ts'
import { ether, ipv4, PROTOCOL, parseEchoReplies, ping } from './testing/frames.ts'
import { skipReason } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const NETWORKS = ['A', 'B', 'C'].map((letter) => `net-01K000000000000000000000${letter}0`)
const SANDBOXES = 6
const ROUNDS = 10
/** Every slot's own gateway answers, so its echo reply shows that the earlier pings were handled. */
const GATEWAY = '172.30.0.1'
const GATEWAY_NUMBER = 99

let testNet: TestNetwork
/** The sandboxes in each network, by index. */
const members: Set<number>[] = NETWORKS.map(() => new Set())
const names = Array.from({ length: SANDBOXES }, (_, index) => `sandbox-${index}`)
const expectedReplies = new Map<number, Set<string>>()
let revision = 0
let round = 0

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ poolSize: SANDBOXES })
    // Half of them may reach nothing else, because rules do not restrict peers.
    for (let index = 0; index < SANDBOXES; index++) await testNet.addSandbox(ipOf(index), networkOf(index))
  })
  after(() => testNet?.close())
}

const ipOf = (index: number): string => `100.64.1.${index + 1}`

function networkOf(index: number): HostVmNetwork {
  const networks = NETWORKS.flatMap((id, network) =>
    members[network]!.has(index)
      ? [{ id, members: [...members[network]!].map((one) => ({ ip: ipOf(one), name: names[one]! })) }]
      : [],
  )
  return withRules(index % 2 === 0 ? ['none'] : [], { networks, revision })
}

const applyTo = (indexes: Iterable<number>) =>
  Promise.all(
    [...indexes].map((index) => testNet.network.slots.change(testNet.sandboxes[index]!.slot, networkOf(index))),
  )

const shareNetwork = (one: number, other: number): boolean => members.some((set) => set.has(one) && set.has(other))

test('after every join and leave, exactly the pairs that share a network reach each other', {
  skip: skipReason,
}, async () => {
  for (let step = 0; step < ROUNDS; step++) {
    const network = members[Math.floor(Math.random() * members.length)]!
    const index = Math.floor(Math.random() * SANDBOXES)
    revision++
    if (network.delete(index)) {
      // The change of the sandbox that leaves is enough; the other members get theirs later.
      await applyTo([index])
      await checkAllPairs()
      await applyTo(network)
    } else {
      network.add(index)
      await applyTo(network)
      await checkAllPairs()
    }
  }
  assert.ok(revision > 0)
})

test('membership survives a restart of the host agent', { skip: skipReason }, async () => {
  members[0]!.clear()
  for (const index of [0, 1, 2]) members[0]!.add(index)
  revision++
  await applyTo(names.keys())

  await testNet.restartHostAgent()

  await checkAllPairs()
  assert.deepEqual(await query(testNet.sandboxes[0]!, 'sandbox-1'), [`NOERROR ${ipOf(1)}`])
})

test('a sandbox resolves only names of networks that it belongs to, and equal names in two networks do not mix', {
  skip: skipReason,
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
    testNet.network.slots.change(testNet.sandboxes[index]!.slot, withRules(egress, { networks, revision }))
  await change(0, ['none'], [inA])
  await change(2, [], [inB])
  await change(4, [], [])
  await change(5, ['none'], [inA, inB])

  assert.deepEqual(await query(testNet.sandboxes[0]!, 'db', 'DB', 'db.example'), [
    `NOERROR ${ipOf(1)}`,
    `NOERROR ${ipOf(1)}`,
    'NXDOMAIN',
  ])
  assert.deepEqual(await query(testNet.sandboxes[2]!, 'db', 'me', 'sandbox-0'), [
    `NOERROR ${ipOf(3)}`,
    `NOERROR ${ipOf(2)}`,
    'NXDOMAIN',
  ])
  assert.deepEqual(await query(testNet.sandboxes[4]!, 'db', 'me'), ['NXDOMAIN', 'NXDOMAIN'])
  assert.deepEqual(await query(testNet.sandboxes[5]!, 'db', 'db.blue.fc.local', 'DB.green.fc.local'), [
    `NOERROR ${ipOf(1)} ${ipOf(3)}`,
    `NOERROR ${ipOf(1)}`,
    `NOERROR ${ipOf(3)}`,
  ])
  assert.deepEqual(await query(testNet.sandboxes[2]!, 'db.green.fc.local', 'db.blue.fc.local'), [
    `NOERROR ${ipOf(3)}`,
    'NXDOMAIN',
  ])
  assert.ok(!(await testNet.internet.received()).some((one) => /^queried (db|me|sandbox-\d)\b(?!\.example)/.test(one)))
})

const query = (sandbox: Sandbox, ...names: string[]) =>
  sandbox.guest.probe(...names.map((name) => ({ query: name, type: 1 })))

/** Every sandbox pings all others and then its gateway. Replies of earlier rounds are checked again. */
async function checkAllPairs(): Promise<void> {
  round++
  for (const [index, { guest, gatewayMac, ip: from }] of testNet.sandboxes.entries()) {
    const to = [...names.keys()].filter((other) => other !== index).map((other) => ({ ip: ipOf(other), number: other }))
    await guest.inject(
      [...to, { ip: GATEWAY, number: GATEWAY_NUMBER }].map(({ ip, number }) =>
        ether({
          to: gatewayMac,
          from: GUEST_MAC,
          body: ipv4({ from, to: ip, protocol: PROTOCOL.ICMP, body: ping(round * 100 + number) }),
        }),
      ),
    )
  }
  for (const [index, { guest }] of testNet.sandboxes.entries()) {
    const peers = [...names.keys()].filter((other) => other !== index && shareNetwork(index, other))
    const expected = expectedReplies.get(index) ?? new Set()
    for (const peer of peers) expected.add(`${ipOf(peer)} ${round * 100 + peer}`)
    expected.add(`${GATEWAY} ${round * 100 + GATEWAY_NUMBER}`)
    expectedReplies.set(index, expected)
    const replies = async () =>
      new Set(parseEchoReplies(await guest.received()).map(({ from, number }) => `${from} ${number}`))
    await until(async () => (await replies()).isSupersetOf(expected))
    assert.deepEqual([...(await replies()).difference(expected)], [], `replies to ${names[index]} in round ${round}`)
  }
}
