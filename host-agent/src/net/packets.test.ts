/** How many packets one sandbox sends per second. Host, internet and guests are network namespaces of this test. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { passTime } from '@warren/kit/testing/pass-time'
import { GUEST_MAC } from './names.ts'
import { ether, ipv4, PROTOCOL, tcpData, udp, withSegmentSize } from './testing/frames.ts'
import { PUBLIC_HOST, runLine, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { LIMITS, type Sandbox, TestNetwork } from './testing/test-network.ts'

const PER_SECOND = 200
/** A tenth of a second of the rate. */
const BURST = 20
const FLOOD = 400

let testNet: TestNetwork

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ limits: { ...LIMITS, packetsPerSecond: PER_SECOND } })
    // Like a physical network, the uplink accepts only single packets.
    await runLine(`ip link set ${UPLINK.name} gso_max_segs 1`)
    await countAtInternet()
  })
  after(() => testNet?.close())
}

test('packets of a sandbox are limited per second, and its neighbour connects', { skip: skipReason }, async () => {
  const hostile = await testNet.addSandbox('100.64.0.10')
  const neighbour = await testNet.addSandbox('100.64.0.11')
  const frame = toInternet(hostile, PROTOCOL.UDP, udp(5000, 7777, 'packet'))

  const { packets, seconds } = await countPackets(() => hostile.guest.inject(Array(FLOOD).fill(frame)))

  assertLimited(packets, seconds)
  assert.deepEqual(await neighbour.guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }), [`hello ${UPLINK.address}`])
})

test('what is no IPv4 counts as well: it reaches nothing, but costs the same', { skip: skipReason }, async () => {
  const hostile = await testNet.addSandbox('100.64.0.12')
  const ipv6 = ether({ to: hostile.gatewayMac, from: GUEST_MAC, type: 0x86dd, body: Buffer.alloc(40) })
  const frame = toInternet(hostile, PROTOCOL.UDP, udp(5000, 7777, 'packet'))

  const { packets, seconds } = await countPackets(() =>
    hostile.guest.inject([...Array(FLOOD).fill(ipv6), ...Array(FLOOD).fill(frame)]),
  )

  // The first half has used up the burst.
  assert.ok(packets <= Math.ceil(PER_SECOND * seconds) + 1, `${packets} packets in ${seconds} s`)
})

test('a large packet that is to become many small ones is limited like these', { skip: skipReason }, async () => {
  const hostile = await testNet.addSandbox('100.64.0.13')
  const frame = withSegmentSize(toInternet(hostile, PROTOCOL.TCP, tcpData(40 * FLOOD)), 40)

  const { packets, seconds } = await countPackets(() => hostile.guest.injectWithVirtioHeader([frame]))

  assertLimited(packets, seconds)
})

test('a large packet with segments of a usual size counts once, so transfers are not limited', {
  skip: skipReason,
}, async () => {
  const honest = await testNet.addSandbox('100.64.0.14')
  const frame = withSegmentSize(toInternet(honest, PROTOCOL.TCP, tcpData(16 * 1_300)), 1_300)

  const { packets } = await countPackets(() => honest.guest.injectWithVirtioHeader(Array(BURST - 5).fill(frame)))

  assert.equal(packets, 16 * (BURST - 5))
})

const toInternet = ({ ip, gatewayMac }: Sandbox, protocol: number, body: Buffer): string =>
  ether({ to: gatewayMac, from: GUEST_MAC, body: ipv4({ from: ip, to: PUBLIC_HOST, protocol, body }) })

function assertLimited(packets: number, seconds: number): void {
  assert.ok(packets <= BURST + Math.ceil(PER_SECOND * seconds) + 1, `${packets} packets in ${seconds} s`)
  assert.ok(packets >= BURST, `only ${packets} packets`)
}

/** Packets that reach the internet because of `send`. What is dropped is gone when it returns. */
async function countPackets(send: () => Promise<void>): Promise<{ packets: number; seconds: number }> {
  const before = await readPackets()
  const startedAt = performance.now()
  await send()
  const seconds = (performance.now() - startedAt) / 1_000
  await passTime(50, 'nothing tells when the last packet has passed the links')
  return { packets: (await readPackets()) - before, seconds }
}

/** Not by the counters of the uplink, which also sends ARP requests, nor with the connections to the web server. */
async function countAtInternet(): Promise<void> {
  const { internet } = testNet
  await internet.run('nft add table ip test')
  await internet.run('nft add counter ip test arrived')
  await internet.run('nft add chain ip test received { type filter hook prerouting priority 0 ; }')
  await internet.run(
    `nft add rule ip test received ip daddr ${PUBLIC_HOST} th dport != ${WEB_PORT} counter name arrived`,
  )
}

async function readPackets(): Promise<number> {
  const listing = JSON.parse(await testNet.internet.run('nft -j list counter ip test arrived')) as {
    nftables: { counter?: { packets: number } }[]
  }
  return listing.nftables.find(({ counter }) => counter)!.counter!.packets
}
