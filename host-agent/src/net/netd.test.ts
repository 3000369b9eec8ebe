/** The life of slots and of netd itself, in a network namespace of this test: nothing is left, whatever is killed. */
import assert from 'node:assert/strict'
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdtempSync, readdirSync, readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { before, type TestContext, test } from 'node:test'
import { setImmediate as nextTurn } from 'node:timers/promises'
import { until } from '@warren/kit/testing/until'
import { HOST_NETWORK_DEFAULT } from '@warren/protocol'
import { NETNS_FOLDER, netnsPath } from './names.ts'
import { Netd } from './netd-client.ts'
import { compilePolicy } from './policy.ts'
import { SlotPool } from './slot-pool.ts'
import { isAlive } from './testing/guest.ts'
import { cannotRun, command, moveToFreshHost, randomInstance } from './testing/host.ts'

const SLOT = { mtu: 1400, tapOwnerUid: 1000 }
const GATE = { dns: 20_000, http: 20_001, tls: 20_002 }
const log = { warn: () => {} }
const claim = (ip: string) => ({
  ip,
  policy: compilePolicy(HOST_NETWORK_DEFAULT, { cidr: '100.65.0.0/16', privateCidrs: [] }),
  usedBytes: 0,
  ingressBytes: 0,
})

if (cannotRun === false) before(moveToFreshHost)

test('fifty claims and releases leave nothing behind', { skip: cannotRun }, async (t) => {
  const { netd, instance } = await host(t, '100.65.0.0/24')
  const clean = await traces(instance)
  const times = { create: [] as number[], claim: [] as number[], release: [] as number[] }

  for (let round = 0; round < 50; round++) {
    const slot = round % 7
    await timed(times.create, () => netd.request('createSlot', { slot, ...SLOT }))
    await timed(times.claim, () => netd.request('claimSlot', { slot, ...claim('100.65.0.9') }))
    const { freed } = await timed(times.release, () => netd.request('releaseSlot', { slot }))
    assert.equal(freed, true)
  }

  assert.deepEqual(await traces(instance), clean)
  for (const [name, list] of Object.entries(times)) t.diagnostic(`${name}: ${percentiles(list)}`)
})

test('netd killed in the middle of twenty creates: after reaping nothing is left', { skip: cannotRun }, async (t) => {
  const { netd, instance } = await host(t, '100.65.1.0/24')
  const clean = await traces(instance)

  const creates = Array.from({ length: 20 }, (_, slot) => netd.request('createSlot', { slot, ...SLOT }))
  const half = netnsPath(instance, 5)
  for (const deadline = Date.now() + 20_000; !existsSync(half) && Date.now() < deadline; ) await nextTurn()
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
  assert.deepEqual(await traces(instance), clean)
})

test('netd ends with its host agent, and the next one sees all it made', { skip: cannotRun }, async (t) => {
  const { netd, instance } = await host(t, '100.65.8.0/24')
  await netd.close()
  const owner = fork(join(import.meta.dirname, 'testing/netd-owner-program.ts'), [instance])
  const [orphan] = (await once(owner, 'message')) as [number]

  owner.kill('SIGKILL')
  const next = new Netd(instance)
  t.after(() => next.close())
  const { released } = await next.request('reapAll', { except: [] })

  assert.equal(isAlive(orphan), false)
  t.diagnostic(`the orphan made ${released.length} slots`)
  assert.deepEqual((await traces(instance)).namespaces, [])
  await next.request('tearDownHost')
})

test('reaping keeps what lives, and tearing down takes all', { skip: cannotRun }, async (t) => {
  const before = await command('nft list ruleset')
  const forwarding = readFileSync('/proc/sys/net/ipv4/ip_forward', 'utf8')
  const { netd, instance } = await host(t, '100.65.2.0/24')
  for (const slot of [0, 1, 2]) await netd.request('createSlot', { slot, ...SLOT })
  for (const slot of [0, 1]) await netd.request('claimSlot', { slot, ...claim(`100.65.2.${slot + 1}`) })

  await netd.request('reapAll', { except: [1] })

  assert.deepEqual(await netd.request('listSlots'), [{ slot: 1, ip: '100.65.2.2', complete: true }])
  assert.match(await command('ip route'), /^100\.65\.2\.2 dev /m)
  assert.doesNotMatch(await command('ip route'), /^100\.65\.2\.1 dev /m)
  await netd.request('tearDownHost')
  assert.equal(await command('nft list ruleset'), before)
  assert.equal(await command('ip route'), '')
  assert.equal(readFileSync('/proc/sys/net/ipv4/ip_forward', 'utf8'), forwarding)
  assert.deepEqual((await traces(instance)).namespaces, [])
})

test('two Warrens on one machine do not meet', { skip: cannotRun }, async (t) => {
  const one = await host(t, '100.65.3.0/24')
  const other = await host(t, '100.65.4.0/24')
  for (const { netd } of [one, other]) await netd.request('createSlot', { slot: 0, ...SLOT })

  const stolen = other.netd.request('setUpHost', { cidr: '100.65.0.0/16', gate: GATE, apiPorts: [] })
  await assert.rejects(stolen, /100\.65\.0\.0\/16 belongs to another Warren on this machine/)
  await other.netd.request('tearDownHost')

  assert.deepEqual(await one.netd.request('listSlots'), [{ slot: 0, complete: true }])
  assert.match(await command('nft list tables'), new RegExp(`warren_${one.instance}`))
  assert.equal(readFileSync('/proc/sys/net/ipv4/ip_forward', 'utf8').trim(), '1')
  assert.match(await command('ip addr show lo'), /169\.254\.1\.1/)
})

test('a program holds the tap and nothing else, and lives on without netd', { skip: cannotRun }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'warren-netd-'))
  t.after(() => rm(folder, { recursive: true }))
  const { netd } = await host(t, '100.65.5.0/24')
  await netd.request('createSlot', { slot: 0, ...SLOT })
  const spawned = await netd.request('spawnIn', {
    slot: 0,
    command: '/bin/sh',
    args: ['-c', 'id; ls -l /proc/$$/fd; echo done; exec sleep 60'],
    uid: 1234,
    gid: 1234,
    env: { PATH: '/usr/bin:/bin' },
    stdoutPath: join(folder, 'out'),
    stderrPath: join(folder, 'err'),
    cgroupProcs: [],
  })
  t.after(() => process.kill(spawned.pid, 'SIGKILL'))
  const output = () => readFileSync(join(folder, 'out'), 'utf8')
  await until(() => output().includes('done'))

  process.kill(netd.pid!, 'SIGKILL')
  const { freed } = await netd.request('releaseSlot', { slot: 0 })

  assert.match(output(), /^uid=1234 gid=1234 groups=1234$/m)
  assert.deepEqual(
    [...output().matchAll(/ (\d+) -> /g)].map(([, fd]) => fd),
    ['0', '1', '2', '3'],
  )
  assert.match(output(), / 3 -> \/dev\/net\/tun/)
  assert.equal(isAlive(spawned.pid), true)
  assert.equal(freed, false)
})

test("a program's end and a failed start are told", { skip: cannotRun }, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'warren-netd-'))
  t.after(() => rm(folder, { recursive: true }))
  const { netd } = await host(t, '100.65.6.0/24')
  await netd.request('createSlot', { slot: 0, ...SLOT })
  const settings = { slot: 0, uid: 0, gid: 0, env: {}, stderrPath: join(folder, 'err'), cgroupProcs: [] }
  const exits: unknown[] = []
  netd.on('exit', (exit) => exits.push(exit))

  const { pid } = await netd.request('spawnIn', { ...settings, command: '/bin/sh', args: ['-c', 'exit 7'] })
  await until(() => exits.length > 0)

  assert.deepEqual(exits, [{ pid, code: 7, signal: null }])
  await assert.rejects(netd.request('spawnIn', { ...settings, command: '/no/such', args: [] }), /could not start/)
  const ungrouped = { ...settings, command: '/bin/sleep', args: ['60'], cgroupProcs: [join(folder, 'no/procs')] }
  await assert.rejects(netd.request('spawnIn', ungrouped), /into its control groups/)
})

test('a pool hands out ready slots and refills itself', { skip: cannotRun }, async (t) => {
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

async function host(t: TestContext, cidr: string): Promise<{ netd: Netd; instance: string }> {
  const instance = randomInstance()
  const netd = new Netd(instance)
  t.after(async () => {
    if (netd.pid !== undefined) await netd.request('tearDownHost')
    await netd.close()
  })
  await netd.request('setUpHost', { cidr, gate: GATE, apiPorts: [] })
  return { netd, instance }
}

/** Everything of an instance that the kernel and the file system know. */
async function traces(instance: string) {
  return {
    namespaces: readdirSync(NETNS_FOLDER).filter((name) => name.includes(instance)),
    links: (await command('ip -o link')).split('\n').filter((line) => line.includes(instance)),
    routes: await command('ip route'),
    rules: await command('nft list ruleset'),
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

test("somebody else's first named namespace takes nothing away from ours", { skip: cannotRun }, async () => {
  const program = join(import.meta.dirname, 'testing/first-netns-program.ts')
  const said = await command(`unshare --mount --propagation private ${process.execPath} ${program}`)

  assert.deepEqual(JSON.parse(said), { freed: true, left: false })
})
