/** The life cycle of slots and of netd, in a network namespace of this test: nothing is left, whatever is killed. */
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT } from '@warren/protocol'
import { NETNS_FOLDER, netnsPath } from './names.ts'
import { Netd } from './netd-client.ts'
import type { HostSettings } from './netd-protocol.ts'
import { compilePolicy } from './policy.ts'
import { SlotPool } from './slot-pool.ts'
import { isAlive } from './testing/guest.ts'
import { moveToFreshHost, randomInstance, runLine, skipReason } from './testing/host.ts'
import { listRuleset } from './testing/kernel-state.ts'
import { MACHINE } from './testing/machine.ts'
import { LIMITS, PROXY_ACCESS } from './testing/test-network.ts'

const IP_FORWARD = '/proc/sys/net/ipv4/ip_forward'
const SLOT = { mtu: 1400, tapOwnerUid: 1000, packetsPerSecond: 100_000 }
const NO_API = { port: 0, beyondLoopback: false }
const EGRESS_PROXY_PORTS = { dns: 20_000, http: 20_001, tls: 20_002 }
const STARTS_BESIDE_STOPS = 60
const log = { warn: () => {} }
const claim = (ip: string) => ({
  ip,
  guestAddress: ip,
  policy: compilePolicy(HOST_NETWORK_DEFAULT, { cidr: '100.65.0.0/16', privateCidrs: [], machine: MACHINE }),
  usedBytes: 0,
  ingressBytes: 0,
})

if (skipReason === false) before(moveToFreshHost)

test('fifty claims and releases leave nothing behind', { skip: skipReason }, async (t) => {
  const { netd, instance } = await host(t, '100.65.0.0/24')
  const clean = await listTraces(instance)
  const times = { create: [] as number[], claim: [] as number[], release: [] as number[] }

  for (let round = 0; round < 50; round++) {
    const slot = round % 7
    await timed(times.create, () => netd.request('createSlot', { slot, ...SLOT }))
    await timed(times.claim, () => netd.request('claimSlot', { slot, ...claim('100.65.0.9') }))
    const { freed } = await timed(times.release, () => netd.request('releaseSlot', { slot }))
    assert.equal(freed, true)
  }

  assert.deepEqual(await listTraces(instance), clean)
  for (const [name, list] of Object.entries(times)) t.diagnostic(`${name}: ${percentiles(list)}`)
})

test('when netd is killed while it creates twenty slots, reaping removes all of them', {
  skip: skipReason,
}, async (t) => {
  const { netd, instance } = await host(t, '100.65.1.0/24')
  const clean = await listTraces(instance)

  const creates = Array.from({ length: 20 }, (_, slot) => netd.request('createSlot', { slot, ...SLOT }))
  const sixth = netnsPath(instance, 5)
  for (const deadline = Date.now() + 20_000; !existsSync(sixth) && Date.now() < deadline; ) await nextTurn()
  process.kill(netd.pid!, 'SIGKILL')
  const outcomes = await Promise.allSettled(creates)
  const found = await netd.request('listSlots')
  const { released } = await netd.request('reapAll', { except: [] })

  assert.match(String((outcomes[19] as PromiseRejectedResult).reason), /netd died \(SIGKILL\)/)
  assert.ok(found.length >= 6)
  assert.deepEqual(
    released.map(({ slot }) => slot),
    found.map(({ slot }) => slot),
  )
  assert.deepEqual(await listTraces(instance), clean)
})

test('netd exits with its host agent, and the next one finds all of its slots', { skip: skipReason }, async (t) => {
  const { netd, instance } = await host(t, '100.65.8.0/24')
  await netd.close()
  const owner = fork(join(import.meta.dirname, 'testing/netd-owner-program.ts'), [instance])
  const [orphanPid] = (await once(owner, 'message')) as [number]

  owner.kill('SIGKILL')
  const next = new Netd(instance)
  t.after(() => next.close())
  const { released } = await next.request('reapAll', { except: [] })

  assert.equal(isAlive(orphanPid), false)
  t.diagnostic(`the orphaned netd created ${released.length} slots`)
  assert.deepEqual((await listTraces(instance)).namespaces, [])
  await next.request('tearDownHost')
})

test('reaping keeps slots in use, and tearing down the host removes everything', { skip: skipReason }, async (t) => {
  const before = listRuleset()
  const forwarding = isForwarding()
  const { netd, instance } = await host(t, '100.65.2.0/24')
  for (const slot of [0, 1, 2]) await netd.request('createSlot', { slot, ...SLOT })
  for (const slot of [0, 1]) await netd.request('claimSlot', { slot, ...claim(`100.65.2.${slot + 1}`) })

  await netd.request('reapAll', { except: [1] })

  assert.deepEqual(await netd.request('listSlots'), [{ slot: 1, ip: '100.65.2.2', complete: true }])
  assert.match(await runLine('ip route'), /^100\.65\.2\.2 dev /m)
  assert.doesNotMatch(await runLine('ip route'), /^100\.65\.2\.1 dev /m)
  await netd.request('tearDownHost')
  assert.equal(listRuleset(), before)
  assert.equal(await runLine('ip route'), '')
  assert.equal(isForwarding(), forwarding)
  assert.deepEqual((await listTraces(instance)).namespaces, [])
})

test('two Warrens on one machine do not affect each other', { skip: skipReason }, async (t) => {
  const one = await host(t, '100.65.3.0/24')
  const other = await host(t, '100.65.4.0/24')
  for (const { netd } of [one, other]) await netd.request('createSlot', { slot: 0, ...SLOT })

  const overlapping = other.netd.request('setUpHost', {
    cidr: '100.65.0.0/16',
    egressProxy: EGRESS_PROXY_PORTS,
    s3Port: 0,
    proxyAccess: PROXY_ACCESS,
    api: NO_API,
    limits: LIMITS,
  })
  await assert.rejects(overlapping, /100\.65\.0\.0\/16 belongs to another Warren on this machine/)
  await other.netd.request('tearDownHost')

  assert.deepEqual(await one.netd.request('listSlots'), [{ slot: 0, complete: true }])
  assert.match(listRuleset(), new RegExp(`warren_${one.instance}`))
  assert.ok(isForwarding())
  assert.match(await runLine('ip addr show lo'), /169\.254\.1\.1/)

  await one.netd.request('tearDownHost')
  assert.doesNotMatch(await runLine('ip addr show lo'), /169\.254\.1\.1/)
})

for (const wasOn of [false, true]) {
  test(`forwarding that was ${wasOn ? 'on' : 'off'} before the first of several Warrens is so after the last`, {
    skip: skipReason,
  }, async (t) => {
    writeFileSync(IP_FORWARD, wasOn ? '1' : '0')
    const first = await host(t, '100.65.11.0/24')
    const second = await host(t, '100.65.12.0/24')
    await first.netd.request('tearDownHost')
    const third = await host(t, '100.65.11.0/24')

    await second.netd.request('tearDownHost')
    assert.ok(isForwarding())
    await third.netd.request('tearDownHost')

    assert.equal(isForwarding(), wasOn)
  })
}

test('a Warren that starts while another one stops has its address and forwarding', { skip: skipReason }, async (t) => {
  const hosts = [await host(t, '100.65.9.0/24'), await host(t, '100.65.10.0/24')]

  const startAndStop = async ({ netd, settings }: (typeof hosts)[number]) => {
    for (let round = 0; round < STARTS_BESIDE_STOPS; round++) {
      await netd.request('setUpHost', settings)
      assert.match(await runLine('ip addr show lo'), /169\.254\.1\.1/)
      assert.ok(isForwarding())
      await netd.request('tearDownHost')
    }
  }
  await Promise.all(hosts.map(startAndStop))
})

test('after netd was killed, the next one of the same instance removes the table and the address', {
  skip: skipReason,
}, async (t) => {
  const { netd } = await host(t, '100.65.8.0/24')
  process.kill(netd.pid!, 'SIGKILL')
  await until(() => netd.pid === undefined)

  await netd.request('tearDownHost')

  assert.doesNotMatch(await runLine('ip addr show lo'), /169\.254\.1\.1/)
  assert.doesNotMatch(listRuleset(), /warren_/)
})

test('the pool provides ready slots and refills itself', { skip: skipReason }, async (t) => {
  const { netd } = await host(t, '100.65.7.0/24')
  const pool = new SlotPool({ netd, log }, { size: 4, ...SLOT })
  await pool.start().until

  const taken = await Promise.all([1, 2, 3, 4, 5, 6].map(() => pool.take()))

  assert.equal(new Set(taken).size, 6)
  await until(() => pool.readyCount === 4)
  await Promise.all(taken.map((slot) => pool.release(slot)))
  await pool.close()
  assert.equal((await netd.request('listSlots')).length, 4)
})

test('the first `ip netns add` of another program on the machine does not hide our namespaces', {
  skip: skipReason,
}, async () => {
  const program = join(import.meta.dirname, 'testing/first-netns-program.ts')
  const output = await runLine(`unshare --mount --propagation private ${process.execPath} ${program}`)

  assert.deepEqual(JSON.parse(output), { freed: true, exists: false })
})

const isForwarding = (): boolean => readFileSync(IP_FORWARD, 'utf8').trim() === '1'

async function host(t: TestContext, cidr: string): Promise<{ netd: Netd; instance: string; settings: HostSettings }> {
  const settings = {
    cidr,
    egressProxy: EGRESS_PROXY_PORTS,
    s3Port: 0,
    proxyAccess: PROXY_ACCESS,
    api: NO_API,
    limits: LIMITS,
  }
  const instance = randomInstance()
  const netd = new Netd(instance)
  t.after(async () => {
    if (netd.pid !== undefined) await netd.request('tearDownHost')
    await netd.close()
  })
  await netd.request('setUpHost', settings)
  return { netd, instance, settings }
}

/** Everything of an instance in the kernel and the file system. */
async function listTraces(instance: string) {
  return {
    namespaces: readdirSync(NETNS_FOLDER).filter((name) => name.includes(instance)),
    links: (await runLine('ip -o link')).split('\n').filter((line) => line.includes(instance)),
    routes: await runLine('ip route'),
    rules: listRuleset(),
    mounts: readFileSync('/proc/mounts', 'utf8')
      .split('\n')
      .filter((line) => line.includes(instance)),
  }
}

async function timed<T>(times: number[], work: () => Promise<T>): Promise<T> {
  const startedAt = performance.now()
  const result = await work()
  times.push(performance.now() - startedAt)
  return result
}

function percentiles(times: number[]): string {
  const sorted = times.toSorted((one, other) => one - other)
  const at = (share: number) => sorted[Math.min(Math.floor(sorted.length * share), sorted.length - 1)]!.toFixed(2)
  return `min ${at(0)} p50 ${at(0.5)} p90 ${at(0.9)} max ${at(1)} ms`
}
