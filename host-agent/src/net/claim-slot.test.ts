/** Claiming a slot that was created with rules must have the same result as claiming one without. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT, type HostVmNetwork } from '@warren/protocol'
import { GUEST_MAC } from './names.ts'
import { compilePolicy } from './policy.ts'
import { ether, ipv4, PROTOCOL, udp } from './testing/frames.ts'
import { PUBLIC_HOST, skipReason } from './testing/host.ts'
import { listSlotRuleset } from './testing/kernel-state.ts'
import { MACHINE } from './testing/machine.ts'
import { API, CIDR, LIMITS, TestNetwork, withRules } from './testing/test-network.ts'

const IP = '100.64.5.1'
const DEFAULT_POLICY = compilePolicy(HOST_NETWORK_DEFAULT, { cidr: CIDR, privateCidrs: [], machine: MACHINE })
const networks = [{ id: 'net-01K0000000000000000000000A', members: [{ ip: '100.64.0.7', name: 'db' }] }]

let testNet: TestNetwork

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
  })
  after(() => testNet?.close())
}

for (const [what, network] of [
  ['the default network', withRules([])],
  ['egress rules', withRules(['192.0.2.0/24:443', 'shop.example'])],
  ['a private network', withRules([], { networks })],
  ['another quota', withRules([], { bandwidth: { quota_bytes: 1_000, used_bytes: 0, ingress_bytes: 0 } })],
  ['no quota', withRules([], { bandwidth: { quota_bytes: -1, used_bytes: 0, ingress_bytes: 0 } })],
  [
    'counters above 0',
    withRules([], { bandwidth: { ...HOST_NETWORK_DEFAULT.bandwidth, used_bytes: 7, ingress_bytes: 9 } }),
  ],
] as [string, HostVmNetwork][]) {
  test(`a prepared slot claimed with ${what} has the same rules as one that was created without rules`, {
    skip: skipReason,
  }, async () => {
    const { slots, instance, netd } = testNet.network
    const { slot } = await slots.claim(IP, network)
    const prepared = listSlotRuleset(instance, slot)
    await slots.release(slot)

    const bare = { slot: 900, mtu: testNet.network.host.mtu, tapOwnerUid: 0, packetsPerSecond: LIMITS.packetsPerSecond }
    await netd.request('createSlot', bare)
    const { used_bytes: usedBytes, ingress_bytes: ingressBytes } = network.bandwidth
    const { host, egressProxyPorts } = testNet.network
    const machine = {
      ...host.machine,
      api: API,
      dnsPort: egressProxyPorts.dns,
      s3Port: 0,
      dnsPerSecond: LIMITS.dnsPerSecond,
    }
    const policy = compilePolicy(network, { cidr: CIDR, privateCidrs: [], machine })
    await netd.request('claimSlot', {
      slot: bare.slot,
      ip: IP,
      guestAddress: IP,
      policy,
      usedBytes,
      ingressBytes,
    })
    const plain = listSlotRuleset(instance, bare.slot)
    await netd.request('releaseSlot', { slot: bare.slot })

    assert.equal(sortObjects(prepared), sortObjects(plain))
    assert.match(prepared, /elements = \{ 100\.64\.5\.1 \}/)
  })
}

test('a slot that was created with an open policy forwards and counts nothing until it is claimed', {
  skip: skipReason,
}, async () => {
  const { slots, instance } = testNet.network
  const unassigned = await testNet.addUnassignedGuest()
  assert.match(listSlotRuleset(instance, unassigned.slot), /chain egress \{(\n\t\t.*)*\n\t\tgoto direct/)
  const send = (text: string) =>
    unassigned.guest.inject([
      ether({
        to: unassigned.gatewayMac,
        from: GUEST_MAC,
        body: ipv4({ from: IP, to: PUBLIC_HOST, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
      }),
    ])
  const arrived = async (text: string) => (await testNet.internet.received()).some((one) => one.startsWith(text))

  await send('too early')
  const before = await slots.usage([unassigned.slot])
  await slots.assign(unassigned.slot, IP)
  await send('in time')
  await until(() => arrived('in time'))

  assert.equal(await arrived('too early'), false)
  assert.equal(before.get(unassigned.slot)!.used_bytes, 0)
  assert.equal((await slots.usage([unassigned.slot])).get(unassigned.slot)!.used_bytes, 28 + 'in time'.length)
  await testNet.removeSandbox(unassigned)
})

test('claiming an address of another slot fails, and the slot can then be released', { skip: skipReason }, async () => {
  const { netd } = testNet.network
  const slot = {
    mtu: testNet.network.host.mtu,
    tapOwnerUid: 0,
    packetsPerSecond: LIMITS.packetsPerSecond,
    policy: DEFAULT_POLICY,
  }
  const claim = { ip: IP, guestAddress: IP, policy: DEFAULT_POLICY, usedBytes: 0, ingressBytes: 0, isPrepared: true }
  for (const number of [900, 901]) await netd.request('createSlot', { ...slot, slot: number })

  await netd.request('claimSlot', { ...claim, slot: 900 })

  await assert.rejects(netd.request('claimSlot', { ...claim, slot: 901 }), /belongs to another slot/)
  await assert.rejects(netd.request('claimSlot', { ...claim, slot: 900 }), /EEXIST/)
  for (const number of [900, 901]) await netd.request('releaseSlot', { slot: number })
})

/** The kernel lists objects in the order of their creation, which does not matter here. */
const sortObjects = (ruleset: string): string =>
  ruleset
    .split(/\n\n|\n(?=\t(?:counter|quota|map|set|chain) )/)
    .toSorted()
    .join('\n')
