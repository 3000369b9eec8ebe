/** The address that the API shows is the guest's own: programs see it, bind to it, and peers see it as the sender. */
import assert from 'node:assert/strict'
import { createHash } from 'node:crypto'
import { readFileSync, writeFileSync } from 'node:fs'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { GUEST_PROTOCOL } from '@warren/protocol'
import { readManifest } from './support/check-disk.ts'
import { stop } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  type SandboxView,
} from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

/** Listens on one address alone, and sends each client its own address and that of the client. */
const SERVER = `use IO::Socket::INET; $s = IO::Socket::INET->new(LocalAddr => $ARGV[0], LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { print $c $c->sockhost, " ", $c->peerhost, "\\n"; close $c }`
const ADDRESSES = 'ip -4 addr show dev eth0 | sed -n "s/.*inet \\([^ ]*\\).*/\\1/p"'
const MAPPED = '172.30.0.2'

async function startServer({ id, ip }: SandboxView): Promise<void> {
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', SERVER, ip!] })
  await until(async () => (await runShell(warren, id, `nc -w 2 ${ip} 8000 </dev/null || true`)) !== '', 'it listens')
}

const connect = (from: SandboxView, to: SandboxView) =>
  runShell(warren, from.id, `nc -w 5 ${to.ip} 8000 </dev/null || true`)

describe('the address of a sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('is the only one in the guest, can be bound, and is what peers see, also after a pause and in a fork', async () => {
    await requestOk(warren, 'POST', '/networks', { name: 'office' })
    const networks = [{ id: 'office' }]
    const server = await createSandbox(warren, { name: 'server', networks })
    const client = await createSandbox(warren, { name: 'client', networks })

    assert.equal(await runShell(warren, server.id, ADDRESSES), `${server.ip}/32`)
    assert.equal(await runShell(warren, server.id, 'hostname -I'), server.ip)
    assert.equal(await runShell(warren, server.id, 'getent hosts server | cut -d" " -f1'), server.ip)
    await startServer(server)
    assert.equal(await connect(client, server), `${server.ip} ${client.ip}`)

    await pauseSandbox(warren, server.id)
    const resumed = await resumeSandbox(warren, server.id)
    assert.equal(resumed.ip, server.ip)
    assert.equal(await connect(client, server), `${server.ip} ${client.ip}`)

    const fork = await forkSandbox(warren, client.id, { live: true, networks })
    assert.notEqual(fork.ip, client.ip)
    assert.equal(await runShell(warren, fork.id, ADDRESSES), `${fork.ip}/32`)
    assert.equal(await runShell(warren, client.id, ADDRESSES), `${client.ip}/32`)
    assert.equal(await connect(fork, server), `${server.ip} ${fork.ip}`)
    for (const { id } of [server, client, fork]) await destroySandbox(warren, id)
  })

  test('cannot be exchanged for that of a neighbour', async () => {
    const networks = [{ id: 'office' }]
    const [server, neighbour, attacker] = await Promise.all(
      ['target', 'neighbour', 'attacker'].map((name) => createSandbox(warren, { name, networks })),
    )
    await startServer(server!)

    const spoof = `ip addr add ${neighbour!.ip}/32 dev eth0; nc -w 3 -s ${neighbour!.ip} ${server!.ip} 8000 </dev/null || true`

    assert.equal(await runShell(warren, attacker!.id, spoof), '')
    assert.equal(await connect(neighbour!, server!), `${server!.ip} ${neighbour!.ip}`)
    assert.equal(await connect(attacker!, server!), `${server!.ip} ${attacker!.ip}`)
    for (const { id } of [server!, neighbour!, attacker!]) await destroySandbox(warren, id)
  })

  test('a sandbox that was saved by an agent that cannot change it is resumed with the mapped address, and says so', async () => {
    const networks = [{ id: 'office' }]
    const server = await createSandbox(warren, { name: 'current', networks })
    const old = await createSandbox(warren, { name: 'old', networks })
    await startServer(server)
    await runShell(
      warren,
      old.id,
      `ip addr add ${MAPPED}/30 dev eth0 && ip addr del ${old.ip}/32 dev eth0; ip route replace default via 172.30.0.1`,
    )
    await pauseSandbox(warren, old.id)
    await pauseSandbox(warren, server.id)
    // Without the standby VMM, and with a manifest as an earlier version wrote it.
    await stop(warren.instance)
    assert.equal(removeAgent(readManifest(warren, old.id).file).protocol, GUEST_PROTOCOL.CURRENT)
    await warren.restart()
    await resumeSandbox(warren, server.id)

    for (const round of [1, 2]) {
      const resumed = await resumeSandbox(warren, old.id)
      assert.equal(
        resumed.status_reason,
        `resumed with an older guest agent: inside the guest its address is ${MAPPED} instead of ${old.ip}`,
      )
      assert.equal(await runShell(warren, old.id, ADDRESSES), `${MAPPED}/30`, `round ${round}`)
      assert.equal(await connect(old, server), `${server.ip} ${old.ip}`)
      await pauseSandbox(warren, old.id)
    }
    for (const { id } of [server, old]) await destroySandbox(warren, id)
  })
})

/** Returns what it removed. The checksum is that of the rest. */
function removeAgent(file: string): { protocol: number; version: string } {
  const { agent, sum: _, ...rest } = JSON.parse(readFileSync(file, 'utf8'))
  const text = JSON.stringify(rest)
  const checksum = createHash('sha256').update(text).digest('hex')
  writeFileSync(file, `${text.slice(0, -1)},"sum":"${checksum}"}\n`)
  return agent
}
