/**
 * Bytes of real guests: those that the API tells are those on the wire, through everything that happens to a sandbox,
 * and no more leave than were paid for. The uplink takes single packets only, as a cable does: what is counted there
 * is what a wire carries, however large the pieces are that a guest hands over.
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
import { cannotRunVms, findQemuPid, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const QUOTA_BYTES = 4_000_000
const ADDED_BYTES = 30_000_000
const POUR_BYTES = 1_000_000
/** One packet, and what the host itself says to its neighbour on the uplink. */
const PACKET_BYTES = 1_500
const CLEARED_LIMIT_MS = 5_000
/** More than fit into what a capped sandbox has left. */
const MANY = 50
/** The control plane asks its hosts every two seconds, once they are there. */
const TOLD_LIMIT_MS = 20_000

if (!cannotRunVms) moveToIsolatedMachine()
const internet = cannotRunVms ? (undefined as never) : await Internet.start()
if (!cannotRunVms) runCommand(`ip link set ${UPLINK.name} gso_max_segs 1`)
const warren = cannotRunVms
  ? (undefined as never)
  : await startVmInstance({ WARREN_BANDWIDTH_QUOTA_BYTES: String(QUOTA_BYTES) })

/** Into a connection, and waits for the other side to have all of it. */
const POUR = `use IO::Socket::INET; $s = IO::Socket::INET->new("$ARGV[0]:9000") or die $!; $left = $ARGV[1];
while ($left > 0) { $n = syswrite $s, "x" x ($left < 60000 ? $left : 60000) or die $!; $left -= $n }
shutdown $s, 1; 1 while sysread $s, $_, 65536;`
const SEND = `use IO::Socket::INET; $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => "$ARGV[0]:7777");
for (;;) { $s->send("paid"); select undef, undef, undef, 0.02 }`

/** To where it pours, as the flow log has them. */
async function connections(id: string): Promise<number> {
  const { flows } = (await requestOk(warren, 'GET', `/sandboxes/${id}/egress/flows`)) as { flows: Flow[] }
  return flows.find(({ destination, port }) => destination === PUBLIC_HOST && port === 9000)?.count ?? 0
}

type Flow = { destination: string; port: number; count: number }
type Bandwidth = { quota_bytes: number; used_bytes: number; ingress_bytes: number; capped: boolean }
const bandwidth = async (id: string) => (await requestOk(warren, 'GET', `/sandboxes/${id}/bandwidth`)) as Bandwidth
const recharge = (id: string) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/bandwidth/recharge`, { add_bytes: ADDED_BYTES })
const pour = (id: string, bytes = POUR_BYTES) => runShell(warren, id, `perl -e '${POUR}' ${PUBLIC_HOST} ${bytes}`)
const start = (id: string, program: string, ...args: string[]) =>
  requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', program, ...args] })

/** Of IP: an interface counts the Ethernet header of each packet too. */
function onWire(): number {
  const [link] = JSON.parse(runCommand(`ip -s -j link show ${UPLINK.name}`)) as {
    stats64: { tx: { bytes: number; packets: number } }
  }[]
  const { tx } = link!.stats64
  return tx.bytes - 14 * tx.packets
}

function isWithinOnePercent(metered: number, wire: number, when: string): void {
  assert.ok(Math.abs(metered - wire) <= 0.01 * wire, `${when}: ${metered} metered, ${wire} on the wire`)
}

const untilReached = (id: string) =>
  until(
    async () => (await request(warren, 'POST', `/sandboxes/${id}/exec`, { cmd: 'true' })).status === 200,
    'the next host agent has it',
  )

describe('metering', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('is what was on the wire, through a pause, a host agent that is killed and a recharge', async (t) => {
    const { id } = await createSandbox(warren)
    const begin = onWire()
    const check = async (when: string) => {
      const wire = onWire() - begin
      const { used_bytes } = await bandwidth(id)
      t.diagnostic(`${when}: ${used_bytes} metered, ${wire} on the wire`)
      isWithinOnePercent(used_bytes, wire, when)
    }

    await pour(id)
    await check('at first')
    await pauseSandbox(warren, id)
    await check('while it is paused')
    await resumeSandbox(warren, id)
    await pour(id)
    await check('after the resume')
    assert.equal(await connections(id), 2, 'resumed in place, with the list it had')
    await recharge(id)
    await start(id, POUR, PUBLIC_HOST, String(10 * POUR_BYTES))
    const half = begin + 6 * POUR_BYTES
    await until(() => onWire() > half, 'it pours')
    kill(await getHostAgentPid(warren.instance.dataDir))
    await until(() => onWire() > begin + 12 * POUR_BYTES, 'it has poured')
    await untilReached(id)
    await check('after the host agent was killed')
    await destroySandbox(warren, id)
  })

  test('ends what leaves at the quota, and lets it go on within seconds of a recharge', async (t) => {
    const { id } = await createSandbox(warren)
    const begin = onWire()
    await start(id, POUR, PUBLIC_HOST, String(2 * QUOTA_BYTES))
    await until(async () => (await bandwidth(id)).capped, 'it is capped')
    await start(id, SEND, PUBLIC_HOST)

    const wire = onWire()
    const { used_bytes } = await bandwidth(id)
    await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)
    const resumed = await bandwidth(id)
    t.diagnostic(`${wire - begin} on the wire, ${used_bytes} metered, of ${QUOTA_BYTES}`)
    assert.ok(wire - begin <= QUOTA_BYTES + PACKET_BYTES, `${wire - begin} bytes have left`)
    assert.ok(used_bytes <= QUOTA_BYTES && used_bytes > QUOTA_BYTES - PACKET_BYTES, `${used_bytes} bytes are metered`)
    // What was left is less than the packet that did not pass: some smaller ones may.
    assert.ok(resumed.used_bytes >= used_bytes && resumed.used_bytes <= QUOTA_BYTES, `${resumed.used_bytes} after it`)
    assert.ok(onWire() - begin <= QUOTA_BYTES + PACKET_BYTES, `${onWire() - begin} bytes have left in the end`)

    const paid = async () => (await internet.seen()).filter((one) => one.startsWith('paid')).length
    const before = await paid()
    const { capped } = await recharge(id)
    assert.equal(capped, false)
    await until(async () => (await paid()) > before + MANY, 'it sends again', CLEARED_LIMIT_MS)
    await destroySandbox(warren, id)
  })

  test('keeps the count of a machine that dies, whoever watches', async () => {
    const { id } = await createSandbox(warren)
    const begin = onWire()

    for (const watched of [true, false]) {
      await pour(id)
      const wire = onWire() - begin
      const qemu = findQemuPid(warren, id)!
      if (!watched) kill(await getHostAgentPid(warren.instance.dataDir))
      kill(qemu)
      await until(async () => (await getSandbox(warren, id)).status === 'error', 'its end is noticed')
      const isKept = async () => Math.abs((await bandwidth(id)).used_bytes - wire) <= 0.01 * wire
      await until(isKept, `all ${wire} bytes are told, ${watched ? 'watched' : 'not watched'}`, TOLD_LIMIT_MS)
      await until(
        async () => (await request(warren, 'POST', `/sandboxes/${id}/resume`)).status < 300,
        'it can be started again',
      )
      await untilReached(id)
      assert.ok((await bandwidth(id)).used_bytes >= 0.99 * wire, 'counting goes on from there')
    }
    assert.equal(await connections(id), 2, 'over the ends of two machines')
    await destroySandbox(warren, id)
  })
})
