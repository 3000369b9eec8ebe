/**
 * Private networks of real machines: who reaches whom is who shares a network with whom, by name and by address, through
 * joins and leaves, pauses and a host agent that is killed. `npm run soak` has ten members in each network.
 */
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import { Internet, moveToIsolatedMachine } from './support/isolated-machine.ts'
import { checkAllPairs, createPeer, forEachPeer, openFlow, type Peer } from './support/network-peers.ts'
import { destroySandbox, pauseSandbox, request, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, SOAK, startVmInstance, VM_STORIES_LIMIT_MS, type VmInstance } from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
if (!cannotRunVms) await Internet.start()
const warren = cannotRunVms ? (undefined as never) : await startVmInstance()

const NETWORKS = ['alpha', 'beta', 'gamma']
const MEMBERS = SOAK ? 10 : 2
const CHANGES = SOAK ? 30 : 6
const MANY_TICKS = 50

const all: Peer[] = []
let other: VmInstance
const named = (name: string) => all.find((one) => one.name === name && one.warren === warren)!

async function join(one: Peer, network: string): Promise<void> {
  await requestOk(one.warren, 'POST', `/sandboxes/${one.id}/networks`, { id: network })
  one.networks.add(`mine ${network}`)
}

async function leave(one: Peer, network: string): Promise<void> {
  await requestOk(one.warren, 'DELETE', `/sandboxes/${one.id}/networks/${network}`)
  one.networks.delete(`mine ${network}`)
}

describe('private networks', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  before(async () => {
    const key = await warren.createUser('other', 'pro')
    other = { ...warren, instance: { ...warren.instance, key } }
    for (const name of NETWORKS) await requestOk(warren, 'POST', '/networks', { name })
    await requestOk(other, 'POST', '/networks', { name: 'alpha' })
    const mine = NETWORKS.flatMap((network) =>
      Array.from({ length: MEMBERS }, (_, index) => ({ name: `${network}-${index}`, networks: [network] })),
    )
    mine.push({ name: 'both', networks: ['alpha', 'beta'] }, { name: 'alone', networks: [] })
    all.push(...(await forEachPeer(mine, ({ name, networks }) => createPeer(warren, 'mine', name, networks))))
    // Of somebody else, with a network and a sandbox that are called like ours.
    for (const name of ['alpha-0', 'stranger']) all.push(await createPeer(other, 'theirs', name, ['alpha']))
  })

  // The box deletes what its own user has.
  after(() =>
    forEachPeer(
      all.filter((one) => one.warren === other),
      ({ id }) => destroySandbox(other, id),
    ),
  )

  test('reach each other by name and address exactly who share one; the same name never crosses', async () => {
    const inside = await forEachPeer(all, ({ warren: owner, id }) =>
      runShell(owner, id, 'grep -c 172.30.0.2 /proc/net/fib_trie'),
    )

    assert.deepEqual(
      inside.map((count) => Number(count) > 0),
      all.map(() => true),
    )
    await checkAllPairs(all)
  })

  test('after random joins and leaves as well, of which one that is paused hears when it goes on', async (t) => {
    const sleeper = named('gamma-0')
    const others = all.filter((one) => one.warren === warren && one !== sleeper)
    await pauseSandbox(warren, sleeper.id)

    for (let change = 0; change < CHANGES; change++) {
      const one = others[Math.floor(Math.random() * others.length)]!
      // Every other time the network that the sleeper is in.
      const network = change % 2 === 0 ? 'gamma' : NETWORKS[Math.floor(Math.random() * NETWORKS.length)]!
      const isIn = one.networks.has(`mine ${network}`)
      t.diagnostic(`${one.name} ${isIn ? 'leaves' : 'joins'} ${network}`)
      await (isIn ? leave(one, network) : join(one, network))
    }
    await resumeSandbox(warren, sleeper.id)

    await checkAllPairs(all)
  })

  test('a pause and a resume change nothing, nor does a host agent that is killed', async () => {
    await forEachPeer([named('alpha-0'), named('both')], async ({ id }) => {
      await pauseSandbox(warren, id)
      await resumeSandbox(warren, id)
    })
    await checkAllPairs(all)

    kill(await getHostAgentPid(warren.instance.dataDir))
    for (const { warren: owner, id } of all) {
      const reached = async () =>
        (await request(owner, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200
      await until(reached, 'the next host agent has it')
    }
    await checkAllPairs(all)
  })

  test('leaving cuts the flows that are open, both ways and from the answer on, and nothing else', async () => {
    const [hub, leaver, stayer] = ['alpha-0', 'alpha-1', 'both'].map(named) as [Peer, Peer, Peer]
    await requestOk(warren, 'POST', '/networks', { name: 'delta' })
    for (const one of [hub, leaver, stayer]) await join(one, 'delta')
    // Whatever the random changes made of it: after this, delta is all that it shares with anybody.
    for (const network of NETWORKS) if (leaver.networks.has(`mine ${network}`)) await leave(leaver, network)
    const outward = await openFlow(leaver, hub)
    const inward = await openFlow(hub, leaver)
    const kept = await openFlow(hub, stayer)

    await leave(leaver, 'delta')
    await until(async () => (await kept()) > MANY_TICKS, 'what goes on has had many more')
    const counts = [await outward(), await inward()]
    const later = (await kept()) + MANY_TICKS
    await until(async () => (await kept()) > later, 'what goes on has had many more')

    assert.deepEqual([await outward(), await inward()], counts)
    await checkAllPairs(all)
  })
})
