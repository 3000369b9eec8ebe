/**
 * Metering of real guests: the bytes that the API reports are those on the wire, whatever happens to the sandbox, and no
 * more bytes leave than the quota allows. The uplink takes only single packets, without segmentation offload, so its
 * counters show what a wire would carry, however large the segments are that a guest hands over.
 */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import { Internet, moveToIsolatedMachine, PUBLIC_HOST, runCommand, UPLINK } from './support/isolated-machine.ts'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
} from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const QUOTA_BYTES = 4_000_000
const ADDED_BYTES = 30_000_000
const SENT_BYTES = 1_000_000
/** One packet, with the ARP traffic of the host itself on the uplink. */
const PACKET_BYTES = 1_500
/** After a recharge, traffic must flow again within this time. */
const CLEARED_LIMIT_MS = 5_000
/** More datagrams than fit into the rest of a used-up quota. */
const MANY = 50
/** The control plane reads the counters of its hosts every two seconds, once they are registered. */
const REPORTED_LIMIT_MS = 20_000

if (!cannotRunVms) moveToIsolatedMachine()
const internet = await startUnlessSkipped(cannotRunVms, () => Internet.start())
if (!cannotRunVms) runCommand(`ip link set ${UPLINK.name} gso_max_segs 1`)
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_BANDWIDTH_QUOTA_BYTES: String(QUOTA_BYTES) }),
)

/** Sends bytes over a connection and waits until the other side has received all of them. */
const SEND_STREAM = `use IO::Socket::INET; $s = IO::Socket::INET->new("$ARGV[0]:9000") or die $!; $left = $ARGV[1];
while ($left > 0) { $n = syswrite $s, "x" x ($left < 60000 ? $left : 60000) or die $!; $left -= $n }
shutdown $s, 1; 1 while sysread $s, $_, 65536;`
const SEND_DATAGRAMS = `use IO::Socket::INET; $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "$ARGV[0]:7777");
for (;;) { $s->send("paid"); select undef, undef, undef, 0.02 }`

/** Connections to the public host in the flow log. */
async function countConnections(id: string): Promise<number> {
  const { flows } = (await requestOk(warren, 'GET', `/sandboxes/${id}/egress/flows`)) as { flows: Flow[] }
  return flows.find(({ destination, port }) => destination === PUBLIC_HOST && port === 9000)?.count ?? 0
}

type Flow = { destination: string; port: number; count: number }
type Bandwidth = { quota_bytes: number; used_bytes: number; ingress_bytes: number; capped: boolean }
const getBandwidth = async (id: string) => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)) as Bandwidth
const recharge = (id: string) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/bandwidth/recharge`, { add_bytes: ADDED_BYTES })
const sendStream = (id: string, bytes = SENT_BYTES) =>
  runShell(warren, id, `perl -e '${SEND_STREAM}' ${PUBLIC_HOST} ${bytes}`)
const startProgram = (id: string, program: string, ...args: string[]) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', program, ...args] })

/** Bytes of IP packets: the interface's counter includes the Ethernet header of each packet. */
function countWireBytes(): number {
  const [link] = JSON.parse(runCommand(`ip -s -j link show ${UPLINK.name}`)) as {
    stats64: { tx: { bytes: number; packets: number } }
  }[]
  const { tx } = link!.stats64
  return tx.bytes - 14 * tx.packets
}

function assertWithinOnePercent(metered: number, wire: number, when: string): void {
  assert.ok(Math.abs(metered - wire) <= 0.01 * wire, `${when}: ${metered} metered, ${wire} on the wire`)
}

const waitUntilAdopted = (id: string) =>
  until(
    async () => (await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200,
    'the new host agent has adopted it',
  )

describe('metering', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('equals the bytes on the wire, through a pause, a killed host agent and a recharge', async (t) => {
    const { id } = await createSandbox(warren)
    const begin = countWireBytes()
    const check = async (when: string) => {
      const wire = countWireBytes() - begin
      const { used_bytes } = await getBandwidth(id)
      t.diagnostic(`${when}: ${used_bytes} metered, ${wire} on the wire`)
      assertWithinOnePercent(used_bytes, wire, when)
    }

    await sendStream(id)
    await check('at first')
    await pauseSandbox(warren, id)
    await check('while paused')
    await resumeSandbox(warren, id)
    await sendStream(id)
    await check('after the resume')
    assert.equal(await countConnections(id), 2, 'the flow log survives a pause and a resume from standby')
    await recharge(id)
    await startProgram(id, SEND_STREAM, PUBLIC_HOST, String(10 * SENT_BYTES))
    const half = begin + 6 * SENT_BYTES
    await until(() => countWireBytes() > half, 'half is sent')
    kill(await getHostAgentPid(warren.instance.dataDir))
    await until(() => countWireBytes() > begin + 12 * SENT_BYTES, 'all is sent')
    await waitUntilAdopted(id)
    await check('after the host agent was killed')
    await destroySandbox(warren, id)
  })

  test('stops traffic at the quota, and lets it flow again within seconds of a recharge', async (t) => {
    const { id } = await createSandbox(warren)
    const begin = countWireBytes()
    await startProgram(id, SEND_STREAM, PUBLIC_HOST, String(2 * QUOTA_BYTES))
    await until(async () => (await getBandwidth(id)).capped, 'it is capped')
    await startProgram(id, SEND_DATAGRAMS, PUBLIC_HOST)

    const wire = countWireBytes()
    const { used_bytes } = await getBandwidth(id)
    await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)
    const resumed = await getBandwidth(id)
    t.diagnostic(`${wire - begin} on the wire, ${used_bytes} metered, of ${QUOTA_BYTES}`)
    assert.ok(wire - begin <= QUOTA_BYTES + PACKET_BYTES, `${wire - begin} bytes were sent`)
    assert.ok(used_bytes <= QUOTA_BYTES && used_bytes > QUOTA_BYTES - PACKET_BYTES, `${used_bytes} bytes are metered`)
    // The rest of the quota is smaller than the packet that was dropped; smaller packets may still pass.
    assert.ok(resumed.used_bytes >= used_bytes && resumed.used_bytes <= QUOTA_BYTES, `${resumed.used_bytes} after it`)
    assert.ok(
      countWireBytes() - begin <= QUOTA_BYTES + PACKET_BYTES,
      `${countWireBytes() - begin} bytes were sent in the end`,
    )

    const countReceived = async () => (await internet.listReceived()).filter((one) => one.startsWith('paid')).length
    const before = await countReceived()
    const { capped } = await recharge(id)
    assert.equal(capped, false)
    await until(async () => (await countReceived()) > before + MANY, 'it sends again', CLEARED_LIMIT_MS)
    await destroySandbox(warren, id)
  })

  test('keeps the count when QEMU dies, with or without a host agent to notice', async () => {
    const { id } = await createSandbox(warren)
    const begin = countWireBytes()

    for (const watched of [true, false]) {
      await sendStream(id)
      const wire = countWireBytes() - begin
      const qemu = findQemuPid(warren, id)!
      if (!watched) kill(await getHostAgentPid(warren.instance.dataDir))
      kill(qemu)
      await until(async () => (await getSandbox(warren, id)).status === 'error', 'its exit is noticed')
      const isReported = async () => Math.abs((await getBandwidth(id)).used_bytes - wire) <= 0.01 * wire
      await until(
        isReported,
        `all ${wire} bytes are reported, ${watched ? 'with' : 'without'} a host agent`,
        REPORTED_LIMIT_MS,
      )
      await until(
        async () => (await request(warren, 'POST', `/sandboxes/${id}/resume`)).status < 300,
        'it can be resumed',
      )
      await waitUntilAdopted(id)
      assert.ok((await getBandwidth(id)).used_bytes >= 0.99 * wire, 'counting continues from there')
    }
    assert.equal(await countConnections(id), 2, 'after two QEMU processes died')
    await destroySandbox(warren, id)
  })
})
