/**
 * Private networks of real machines: who reaches whom is who shares a network with whom, by name and by address, through
 * joins and leaves, pauses and a host agent that is killed. `npm run soak` has ten members in each network.
 */
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { hostAgentPid, kill } from './box.ts'
import { call, destroy, must, pause, resume, sh } from './lifecycle.ts'
import { checkAllPairs, forAll, holdFlow, moveIn, type Neighbour } from './neighbours.ts'
import { Internet, moveToOwnMachine } from './own-machine.ts'
import { cannotRunVms, SOAK, startVmBox, VM_STORIES_LIMIT_MS, type VmBox } from './vm-box.ts'

if (!cannotRunVms) moveToOwnMachine()
if (!cannotRunVms) await Internet.start()
const it = cannotRunVms ? (undefined as never) : await startVmBox()

const NETWORKS = ['alpha', 'beta', 'gamma']
const MEMBERS = SOAK ? 10 : 2
const CHANGES = SOAK ? 30 : 6
const MANY_TICKS = 50

const all: Neighbour[] = []
let other: VmBox
const named = (name: string) => all.find((one) => one.name === name && one.it === it)!

async function join(one: Neighbour, network: string): Promise<void> {
  await must(one.it, 'POST', `/sandboxes/${one.id}/networks`, { id: network })
  one.networks.add(`mine ${network}`)
}

async function leave(one: Neighbour, network: string): Promise<void> {
  await must(one.it, 'DELETE', `/sandboxes/${one.id}/networks/${network}`)
  one.networks.delete(`mine ${network}`)
}

describe('private networks', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  before(async () => {
    const key = await it.user('other', 'pro')
    other = { ...it, box: { ...it.box, key } }
    for (const name of NETWORKS) await must(it, 'POST', '/networks', { name })
    await must(other, 'POST', '/networks', { name: 'alpha' })
    const mine = NETWORKS.flatMap((network) =>
      Array.from({ length: MEMBERS }, (_, index) => ({ name: `${network}-${index}`, networks: [network] })),
    )
    mine.push({ name: 'both', networks: ['alpha', 'beta'] }, { name: 'alone', networks: [] })
    all.push(...(await forAll(mine, ({ name, networks }) => moveIn(it, 'mine', name, networks))))
    // Of somebody else, with a network and a sandbox that are called like ours.
    for (const name of ['alpha-0', 'stranger']) all.push(await moveIn(other, 'theirs', name, ['alpha']))
  })

  // The box deletes what its own user has.
  after(() =>
    forAll(
      all.filter((one) => one.it === other),
      ({ id }) => destroy(other, id),
    ),
  )

  test('reach each other by name and address exactly who share one; the same name never crosses', async () => {
    const inside = await forAll(all, ({ it: owner, id }) => sh(owner, id, 'grep -c 172.30.0.2 /proc/net/fib_trie'))

    assert.deepEqual(
      inside.map((count) => Number(count) > 0),
      all.map(() => true),
    )
    await checkAllPairs(all)
  })

  test('after random joins and leaves as well, of which one that is paused hears when it goes on', async (t) => {
    const sleeper = named('gamma-0')
    const others = all.filter((one) => one.it === it && one !== sleeper)
    await pause(it, sleeper.id)

    for (let change = 0; change < CHANGES; change++) {
      const one = others[Math.floor(Math.random() * others.length)]!
      // Every other time the network that the sleeper is in.
      const network = change % 2 === 0 ? 'gamma' : NETWORKS[Math.floor(Math.random() * NETWORKS.length)]!
      const isIn = one.networks.has(`mine ${network}`)
      t.diagnostic(`${one.name} ${isIn ? 'leaves' : 'joins'} ${network}`)
      await (isIn ? leave(one, network) : join(one, network))
    }
    await resume(it, sleeper.id)

    await checkAllPairs(all)
  })

  test('a pause and a resume change nothing, nor does a host agent that is killed', async () => {
    await forAll([named('alpha-0'), named('both')], async ({ id }) => {
      await pause(it, id)
      await resume(it, id)
    })
    await checkAllPairs(all)

    kill(await hostAgentPid(it.box.dataDir))
    for (const { it: owner, id } of all) {
      const reached = async () => (await call(owner, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200
      await until(reached, 'the next host agent has it')
    }
    await checkAllPairs(all)
  })

  test('leaving cuts the flows that are open, both ways and from the answer on, and nothing else', async () => {
    const [hub, leaver, stayer] = ['alpha-0', 'alpha-1', 'both'].map(named) as [Neighbour, Neighbour, Neighbour]
    await must(it, 'POST', '/networks', { name: 'delta' })
    for (const one of [hub, leaver, stayer]) await join(one, 'delta')
    // Whatever the random changes made of it: after this, delta is all that it shares with anybody.
    for (const network of NETWORKS) if (leaver.networks.has(`mine ${network}`)) await leave(leaver, network)
    const outward = await holdFlow(leaver, hub)
    const inward = await holdFlow(hub, leaver)
    const kept = await holdFlow(hub, stayer)

    await leave(leaver, 'delta')
    await until(async () => (await kept()) > MANY_TICKS, 'what goes on has had many more')
    const counts = [await outward(), await inward()]
    const later = (await kept()) + MANY_TICKS
    await until(async () => (await kept()) > later, 'what goes on has had many more')

    assert.deepEqual([await outward(), await inward()], counts)
    await checkAllPairs(all)
  })
})
