/** Traffic is metered exactly, across every event in the life of a sandbox, and never exceeds the quota. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostBandwidth, HostVmNetwork } from '@warren/protocol'
import { GUEST_MAC } from './names.ts'
import { ether, ipv4, PROTOCOL, tcpData, udp, withSegmentSize } from './testing/frames.ts'
import { PUBLIC_HOST, runLine, skipReason, UPLINK } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const PACKET_BYTES = 1_000
const UNMETERED = -1

let testNet: TestNetwork
let revision = 0
let sent = 0

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
  })
  after(() => testNet?.close())
}

const metered = (quota_bytes: number, used_bytes = 0, ingress_bytes = 0, egress: string[] = []): HostVmNetwork =>
  withRules(egress, { revision: ++revision, bandwidth: { quota_bytes, used_bytes, ingress_bytes } })

const usageOf = async ({ slot }: Sandbox): Promise<HostBandwidth> =>
  (await testNet.network.slots.usage([slot])).get(slot)!

/**
 * Sends numbered packets. The frames have reached the kernel when this returns; the returned function counts those that
 * arrived.
 */
async function send(sandbox: Sandbox, count: number, to = PUBLIC_HOST): Promise<() => Promise<number>> {
  const texts = Array.from({ length: count }, () => `#${++sent}#`.padEnd(PACKET_BYTES - 28, '.'))
  const frames = texts.map((text) =>
    ether({
      to: sandbox.gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ from: sandbox.ip, to, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
    }),
  )
  const heads = new Set(texts.map((text) => text.slice(0, 12)))
  await sandbox.guest.inject(frames)
  return async () => (await testNet.internet.received()).filter((one) => heads.has(one.slice(0, 12))).length
}

test('sent traffic is counted to the byte, and the quota ends at the exact packet', { skip: skipReason }, async () => {
  const sandbox = await testNet.addSandbox('100.64.2.1', metered(100 * PACKET_BYTES))

  const first = await send(sandbox, 60)
  await until(async () => (await first()) === 60)
  const before = await usageOf(sandbox)
  const second = await send(sandbox, 200)
  await until(async () => (await usageOf(sandbox)).capped)
  await until(async () => (await second()) === 40)

  assert.deepEqual(before, { quota_bytes: 100_000, used_bytes: 60_000, ingress_bytes: 0, capped: false })
  assert.deepEqual(await usageOf(sandbox), {
    quota_bytes: 100_000,
    used_bytes: 100_000,
    ingress_bytes: 0,
    capped: true,
  })

  // A recharge allows exactly what was added, although the kernel's own count includes dropped packets.
  await testNet.network.slots.change(sandbox.slot, metered(130 * PACKET_BYTES))
  assert.equal((await usageOf(sandbox)).capped, false)
  const third = await send(sandbox, 100)
  await until(async () => (await third()) === 30)
  assert.deepEqual(await usageOf(sandbox), {
    quota_bytes: 130_000,
    used_bytes: 130_000,
    ingress_bytes: 0,
    capped: true,
  })
  await testNet.removeSandbox(sandbox)
})

test('a change of rules keeps the count, and refused packets are not counted', { skip: skipReason }, async () => {
  const sandbox = await testNet.addSandbox('100.64.2.2', metered(50 * PACKET_BYTES, 0, 0, [PUBLIC_HOST]))

  for (let round = 1; round <= 4; round++) {
    const passes = await send(sandbox, 10)
    await send(sandbox, 30, '203.0.113.6')
    await until(async () => (await passes()) === 10)
    await testNet.network.slots.change(sandbox.slot, metered(50 * PACKET_BYTES, 0, 0, [PUBLIC_HOST, `1.1.1.${round}`]))
    assert.equal((await usageOf(sandbox)).used_bytes, round * 10 * PACKET_BYTES)
  }
  const last = await send(sandbox, 30)
  await until(async () => (await usageOf(sandbox)).capped)
  await until(async () => (await last()) === 10)
  await testNet.removeSandbox(sandbox)
})

test('the count continues across a pause, a restart of the host agent and an unmetered period', {
  skip: skipReason,
}, async () => {
  const before = await testNet.addSandbox('100.64.2.3', metered(100 * PACKET_BYTES))
  const passes = await send(before, 30)
  await until(async () => (await passes()) === 30)
  const paused = await usageOf(before)
  await testNet.removeSandbox(before)

  const sandbox = await testNet.addSandbox(
    '100.64.2.3',
    metered(100 * PACKET_BYTES, paused.used_bytes, paused.ingress_bytes),
  )
  assert.deepEqual(await usageOf(sandbox), paused)
  const resumed = await send(sandbox, 20)
  await until(async () => (await resumed()) === 20)

  await testNet.restartHostAgent()
  const restarted = await send(sandbox, 10)
  await until(async () => (await restarted()) === 10)
  assert.equal((await usageOf(sandbox)).used_bytes, 60_000)

  await testNet.network.slots.change(sandbox.slot, metered(UNMETERED))
  const unmetered = await send(sandbox, 60)
  await until(async () => (await unmetered()) === 60)
  assert.deepEqual(await usageOf(sandbox), { quota_bytes: -1, used_bytes: 120_000, ingress_bytes: 0, capped: false })

  await testNet.network.slots.change(sandbox.slot, metered(100 * PACKET_BYTES))
  assert.equal((await usageOf(sandbox)).capped, true)
  await testNet.removeSandbox(sandbox)
})

test('metered bytes equal the bytes on the uplink, in both directions', { skip: skipReason }, async () => {
  const sandbox = await testNet.addSandbox('100.64.2.4', metered(UNMETERED))
  const start = await readUplinkBytes()

  const outcomes = await sandbox.guest.probe({ bulk: PUBLIC_HOST, port: 9000, bytes: 2_000_000 })

  const end = await readUplinkBytes()
  const usage = await usageOf(sandbox)
  assert.deepEqual(outcomes, ['sent all'])
  assert.ok(usage.used_bytes > 2_000_000)
  isWithinOnePercent(usage.used_bytes, end.out - start.out)
  isWithinOnePercent(usage.ingress_bytes, end.in - start.in)
  await testNet.removeSandbox(sandbox)
})

test('a large packet is metered as its segments, whatever segment size the guest asks for', {
  skip: skipReason,
}, async () => {
  // Like a physical network, the uplink accepts only single packets.
  await runLine(`ip link set ${UPLINK.name} gso_max_segs 1`)
  const sandbox = await testNet.addSandbox('100.64.2.5', metered(UNMETERED))
  const start = await readUplinkBytes()
  const frame = ether({
    to: sandbox.gatewayMac,
    from: GUEST_MAC,
    body: ipv4({ from: sandbox.ip, to: PUBLIC_HOST, protocol: PROTOCOL.TCP, body: tcpData(20_000) }),
  })
  let expected = 0

  for (const bytes of [1_300, 100, 40]) {
    await sandbox.guest.injectWithVirtioHeader([withSegmentSize(frame, bytes)])
    expected += 20_000 + 40 * Math.ceil(20_000 / bytes)
    await until(async () => (await readUplinkBytes()).out - start.out >= expected)
  }

  assert.equal((await usageOf(sandbox)).used_bytes, expected)
  await testNet.removeSandbox(sandbox)
})

/** Bytes of IP: the interface counts the Ethernet header of each packet as well. */
async function readUplinkBytes(): Promise<{ in: number; out: number }> {
  const [link] = JSON.parse(await runLine(`ip -s -j link show ${UPLINK.name}`)) as {
    stats64: Record<'rx' | 'tx', { bytes: number; packets: number }>
  }[]
  const { rx, tx } = link!.stats64
  return { in: rx.bytes - 14 * rx.packets, out: tx.bytes - 14 * tx.packets }
}

const isWithinOnePercent = (one: number, other: number): void =>
  assert.ok(Math.abs(one - other) <= 0.01 * other, `${one} and ${other} differ by more than 1 %`)
