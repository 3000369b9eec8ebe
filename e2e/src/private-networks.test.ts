/**
 * Private networks of real VMs: two sandboxes reach each other, by name and by address, exactly when they share a
 * network, also after joins, leaves, pauses and a killed host agent. `npm run soak` has ten members in each network.
 */
import assert from 'node:assert/strict'
import { after, before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import { Internet, moveToIsolatedMachine } from './support/isolated-machine.ts'
import { checkAllPairs, createPeer, forEachPeer, openFlow, type Peer } from './support/network-peers.ts'
import { destroySandbox, pauseSandbox, request, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import {
  cannotRunVms,
  SOAK,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
  type VmInstance,
} from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
if (!cannotRunVms) await Internet.start()
const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

const NETWORKS = ['alpha', 'beta', 'gamma']
const MEMBERS = SOAK ? 10 : 2
const CHANGES = SOAK ? 30 : 6
const MANY_BYTES = 50

const peers: Peer[] = []
let otherUser: VmInstance
const getPeer = (name: string) => peers.find((one) => one.name === name && one.warren === warren)!

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
    otherUser = { ...warren, instance: { ...warren.instance, key } }
    for (const name of NETWORKS) await requestOk(warren, 'POST', '/networks', { name })
    await requestOk(otherUser, 'POST', '/networks', { name: 'alpha' })
    const mine = NETWORKS.flatMap((network) =>
      Array.from({ length: MEMBERS }, (_, index) => ({ name: `${network}-${index}`, networks: [network] })),
    )
    mine.push({ name: 'both', networks: ['alpha', 'beta'] }, { name: 'alone', networks: [] })
    peers.push(...(await forEachPeer(mine, ({ name, networks }) => createPeer(warren, 'mine', name, networks))))
    // Another user has a network and a sandbox with the same names.
    for (const name of ['alpha-0', 'stranger']) peers.push(await createPeer(otherUser, 'theirs', name, ['alpha']))
  })

  // The hook of startVmInstance deletes only the sandboxes of the first user.
  after(() =>
    forEachPeer(
      peers.filter((one) => one.warren === otherUser),
      ({ id }) => destroySandbox(otherUser, id),
    ),
  )

  test('peers reach each other exactly when they share a network; equal names of two users do not mix', async () => {
    const inside = await forEachPeer(peers, ({ warren: owner, id, ip }) =>
      runShell(owner, id, `grep -c '${ip}$' /proc/net/fib_trie`),
    )

    assert.deepEqual(
      inside.map((count) => Number(count) > 0),
      peers.map(() => true),
    )
    await checkAllPairs(peers)
  })

  test('the same holds after random joins and leaves, also for a sandbox that was paused meanwhile', async (t) => {
    const paused = getPeer('gamma-0')
    const others = peers.filter((one) => one.warren === warren && one !== paused)
    await pauseSandbox(warren, paused.id)

    for (let change = 0; change < CHANGES; change++) {
      const one = others[Math.floor(Math.random() * others.length)]!
      // Every second change is in the network of the paused sandbox.
      const network = change % 2 === 0 ? 'gamma' : NETWORKS[Math.floor(Math.random() * NETWORKS.length)]!
      const isMember = one.networks.has(`mine ${network}`)
      t.diagnostic(`${one.name} ${isMember ? 'leaves' : 'joins'} ${network}`)
      await (isMember ? leave(one, network) : join(one, network))
    }
    await resumeSandbox(warren, paused.id)

    await checkAllPairs(peers)
  })

  test('a pause with a resume changes nothing, nor does a killed host agent', async () => {
    await forEachPeer([getPeer('alpha-0'), getPeer('both')], async ({ id }) => {
      await pauseSandbox(warren, id)
      await resumeSandbox(warren, id)
    })
    await checkAllPairs(peers)

    kill(await getHostAgentPid(warren.instance.dataDir))
    for (const { warren: owner, id } of peers) {
      const isAdopted = async () =>
        (await request(owner, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200
      await until(isAdopted, 'the new host agent has adopted it')
    }
    await checkAllPairs(peers)
  })

  test('leaving a network drops its open flows in both directions, from the response on, and no others', async () => {
    const [hub, leaver, stayer] = ['alpha-0', 'alpha-1', 'both'].map(getPeer) as [Peer, Peer, Peer]
    await requestOk(warren, 'POST', '/networks', { name: 'delta' })
    for (const one of [hub, leaver, stayer]) await join(one, 'delta')
    // Undoes the random changes: delta is then the only network of the leaver.
    for (const network of NETWORKS) if (leaver.networks.has(`mine ${network}`)) await leave(leaver, network)
    const outward = await openFlow(leaver, hub)
    const inward = await openFlow(hub, leaver)
    const retained = await openFlow(hub, stayer)

    await leave(leaver, 'delta')
    await until(async () => (await retained()) > MANY_BYTES, 'the retained flow has received many bytes')
    const counts = [await outward(), await inward()]
    const later = (await retained()) + MANY_BYTES
    await until(async () => (await retained()) > later, 'the retained flow has received many bytes')

    assert.deepEqual([await outward(), await inward()], counts)
    await checkAllPairs(peers)
  })
})
