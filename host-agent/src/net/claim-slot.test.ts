/** A claim of a slot that was made with rules: quicker, and the same in the end. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { netnsName } from './names.ts'
import { compilePolicy } from './policy.ts'
import { ether, ipv4, PROTOCOL, udp } from './testing/frames.ts'
import { cannotRun, command, PUBLIC_HOST } from './testing/host.ts'
import { CIDR, GUEST_MAC, World, withRules } from './testing/test-network.ts'

const IP = '100.64.5.1'
const SETTINGS = { cidr: CIDR, privateCidrs: [] }
const USUAL = compilePolicy(HOST_NETWORK_DEFAULT, SETTINGS)
const networks = [{ id: 'net-01K0000000000000000000000A', members: [{ ip: '100.64.0.7', name: 'db' }] }]

let world: World

if (cannotRun === false) {
  before(async () => {
    world = await World.open()
  })
  after(() => world?.close())
}

for (const [what, network] of [
  ['nothing asked for', withRules([])],
  ['rules', withRules(['192.0.2.0/24:443', 'shop.example'])],
  ['a private network', withRules([], { networks })],
  ['another quota', withRules([], { bandwidth: { quota_bytes: 1_000, used_bytes: 0, ingress_bytes: 0 } })],
  ['no quota', withRules([], { bandwidth: { quota_bytes: -1, used_bytes: 0, ingress_bytes: 0 } })],
  [
    'counts to go on from',
    withRules([], { bandwidth: { ...HOST_NETWORK_DEFAULT.bandwidth, used_bytes: 7, ingress_bytes: 9 } }),
  ],
] as [string, HostVmNetwork][]) {
  test(`${what}: the rules in force are those of a slot that was made without any`, { skip: cannotRun }, async () => {
    const { slots, instance, netd } = world.network
    const { slot } = await slots.claim(IP, network)
    const prepared = await command(`ip netns exec ${netnsName(instance, slot)} nft list ruleset`)
    await slots.release(slot)

    const bare = { slot: 900, mtu: world.network.host.mtu, tapOwnerUid: 0 }
    await netd.request('createSlot', bare)
    const { used_bytes: usedBytes, ingress_bytes: ingressBytes } = network.bandwidth
    const policy = compilePolicy(network, SETTINGS)
    await netd.request('claimSlot', { slot: bare.slot, ip: IP, policy, usedBytes, ingressBytes })
    const plain = await command(`ip netns exec ${netnsName(instance, bare.slot)} nft list ruleset`)
    await netd.request('releaseSlot', { slot: bare.slot })

    assert.equal(inOrder(prepared), inOrder(plain))
    assert.match(prepared, /elements = \{ 172\.30\.0\.2 \}/)
  })
}

test('a slot that was made open lets nothing out, and counts nothing, until it is claimed', {
  skip: cannotRun,
}, async () => {
  const { slots, instance } = world.network
  const nobody = await world.nobody()
  const rules = await command(`ip netns exec ${netnsName(instance, nobody.slot)} nft list chain ip warren egress`)
  assert.match(rules, /goto direct/)
  const send = (text: string) =>
    nobody.guest.inject([
      ether({
        to: nobody.gatewayMac,
        from: GUEST_MAC,
        body: ipv4({ to: PUBLIC_HOST, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
      }),
    ])
  const seen = async (text: string) => (await world.internet.seen()).some((one) => one.startsWith(text))

  await send('too early')
  const before = await slots.usage([nobody.slot])
  await slots.give(nobody.slot, IP)
  await send('in time')
  await until(() => seen('in time'))

  assert.equal(await seen('too early'), false)
  assert.equal(before.get(nobody.slot)!.used_bytes, 0)
  assert.equal((await slots.usage([nobody.slot])).get(nobody.slot)!.used_bytes, 28 + 'in time'.length)
  await world.end(nobody)
})

test('an address that another slot has is refused, and the slot can be given up', { skip: cannotRun }, async () => {
  const { netd } = world.network
  const slot = { mtu: world.network.host.mtu, tapOwnerUid: 0, policy: USUAL }
  const claim = { ip: IP, policy: USUAL, usedBytes: 0, ingressBytes: 0, asPrepared: true }
  for (const number of [900, 901]) await netd.request('createSlot', { ...slot, slot: number })

  await netd.request('claimSlot', { ...claim, slot: 900 })

  await assert.rejects(netd.request('claimSlot', { ...claim, slot: 901 }), /belongs to another slot/)
  await assert.rejects(netd.request('claimSlot', { ...claim, slot: 900 }), /EEXIST/)
  for (const number of [900, 901]) await netd.request('releaseSlot', { slot: number })
})

/** Objects are listed in the order they were made in, and what a guest was refused is beside the point. */
const inOrder = (ruleset: string): string =>
  ruleset
    .split(/\n\n|\n(?=\t(?:counter|quota|map|set|chain) )/)
    .toSorted()
    .join('\n')
