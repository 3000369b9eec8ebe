/** What the metrics of a sandbox say, beside what its guest says and what it was made to do. */
import assert from 'node:assert/strict'
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { describe, type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { MetricsPoint, MetricsSeriesView, MetricsView } from '@warren/protocol'
import { getHostAgentPid, kill } from './support/instance.ts'
import { Internet, moveToIsolatedMachine, PUBLIC_HOST } from './support/isolated-machine.ts'
import { createSandbox, destroySandbox, pauseSandbox, requestOk, resumeSandbox, runShell } from './support/sandboxes.ts'
import {
  cannotRunVms,
  findQemuPid,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const MIB = 1024 * 1024
/** Promised: what a guest does is visible after this time. */
const VISIBLE_LIMIT_MS = 30_000
/** The metrics are an average of 15 to 30 s. */
const AVERAGED_MS = 20_000
const HELD_BYTES = 60 * MIB
const FILE_BYTES = 150 * MIB
const SENT_BYTES_PER_SEC = 200_000

if (!cannotRunVms) moveToIsolatedMachine()
await startUnlessSkipped(cannotRunVms, () => Internet.start())
const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

const getMetrics = async (id: string) =>
  (await requestOk(warren, 'GET', `/sandboxes/${id}/metrics`)) as unknown as MetricsView
const getSeries = async (id: string) =>
  (await requestOk(warren, 'GET', `/sandboxes/${id}/metrics/timeseries`)) as unknown as MetricsSeriesView
const findNewest = async (id: string): Promise<MetricsPoint | undefined> => (await getSeries(id)).points.at(-1)
const startPerl = async (id: string, program: string, ...args: string[]): Promise<string> => {
  const process = await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, {
    cmd: 'perl',
    args: ['-e', program, ...args],
  })
  return process.process_id as string
}
const endProcess = (id: string, process: string) => requestOk(warren, 'DELETE', `/sandboxes/${id}/processes/${process}`)

const isWithinTenPercent = (one: number, other: number) => Math.abs(one - other) <= 0.1 * Math.max(one, other)

/** Waits until something that the guest does is visible. Reports how long that took. */
async function waitUntilVisible<T>(t: TestContext, what: string, condition: () => Promise<T>) {
  const startedAt = performance.now()
  const found = await until(condition, `${what} visible`, VISIBLE_LIMIT_MS)
  t.diagnostic(`${what} visible after ${((performance.now() - startedAt) / 1000).toFixed(1)} s`)
  return found
}

/** Waits for a sample that agrees with what the guest says at the same time. */
async function waitForAgreement(
  t: TestContext,
  id: string,
  what: string,
  readValue: (point: MetricsPoint) => number,
  askGuest: () => Promise<number>,
  isPlausible: (value: number) => boolean,
): Promise<MetricsPoint> {
  let seen = ''
  try {
    return await waitUntilVisible(t, what, async () => {
      const ofGuest = await askGuest()
      const point = await findNewest(id)
      seen = `${point && readValue(point)} in the newest sample, ${ofGuest} in the guest`
      return point && isPlausible(readValue(point)) && isWithinTenPercent(readValue(point), ofGuest) && point
    })
  } catch (error) {
    throw new Error(`${what}: ${seen}`, { cause: error })
  }
}

const askMemory = (id: string) => async () => {
  const script = `awk '/^MemTotal:/ { t = $2 } /^MemAvailable:/ { a = $2 } END { print t - a }' /proc/meminfo`
  return Number(await runShell(warren, id, script)) * 1024
}
const askStorage = (id: string) => async () => Number(await runShell(warren, id, 'df -B1 --output=used / | tail -n 1'))
const askSentPerSecond = (id: string) => async () => {
  const read = 'cat /sys/class/net/eth0/statistics/tx_bytes; date +%s%N'
  const [bytes, ns, bytesLater, nsLater] = (await runShell(warren, id, `${read}; sleep 5; ${read}`))
    .split('\n')
    .map(Number)
  return (bytesLater! - bytes!) / ((nsLater! - ns!) / 1e9)
}

const HOLD_MEMORY = '$held = "x" x $ARGV[0]; sleep'
/** At a steady rate: what could not be sent in time is sent later. The perl of a small image has no clock below a second. */
const SEND_STEADILY = `use IO::Socket::INET; sub now { open my $f, "/proc/uptime"; (split " ", <$f>)[0] }
$s = IO::Socket::INET->new("$ARGV[0]:9000") or die $!; $begin = now(); $sent = 0;
for (;;) { $due = int((now() - $begin) * $ARGV[1]) - $sent;
$sent += syswrite $s, "x" x ($due > 60000 ? 60000 : $due) if $due > 0; select undef, undef, undef, 0.05 }`

describe('the metrics of a sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('show CPU time, memory, storage and traffic within 30 s', async (t) => {
    const { id } = await createSandbox(warren)
    const first = await until(() => findNewest(id), 'the first sample', VISIBLE_LIMIT_MS)
    await until(async () => (await getMetrics(id)).cpu_cores_used < 0.1, 'it is idle')
    const idle = await getMetrics(id)
    assert.deepEqual([idle.memory_limit_bytes, idle.cpu_cores_allocated], [256 * MIB, 1])
    assert.ok(idle.memory_bytes > 10 * MIB && idle.memory_bytes < 400 * MIB, JSON.stringify(idle))
    assert.deepEqual([first.memory_limit_bytes, first.storage_limit_bytes], [256 * MIB, 10_240 * MIB])

    const burning = await startPerl(id, '1 while 1')
    const isBusy = (cores = 0) => cores > 0.1 && cores > 3 * idle.cpu_cores_used
    await waitUntilVisible(t, 'CPU time', async () => isBusy((await getMetrics(id)).cpu_cores_used))
    await waitUntilVisible(t, 'CPU time in a sample', async () => isBusy((await findNewest(id))?.cpu_cores_used))
    await compareWithProcess(t, id)
    await endProcess(id, burning)

    const guestBefore = await askMemory(id)()
    const hostBefore = (await getMetrics(id)).memory_bytes
    await startPerl(id, HOLD_MEMORY, String(HELD_BYTES))
    const filled = await waitForAgreement(
      t,
      id,
      'memory',
      (point) => point.memory_used_guest_bytes,
      askMemory(id),
      (bytes) => bytes > guestBefore + 0.9 * HELD_BYTES,
    )
    const hostAfter = (await getMetrics(id)).memory_bytes
    t.diagnostic(`${(hostAfter - hostBefore) / MIB} MiB more on the host after ${HELD_BYTES / MIB} MiB in the guest`)
    assert.ok(hostAfter > hostBefore + HELD_BYTES / 2 && hostAfter < hostBefore + 3 * HELD_BYTES)
    assert.ok(filled.memory_bytes > hostBefore)

    const storageBefore = await askStorage(id)()
    await runShell(warren, id, `head -c ${FILE_BYTES} /dev/urandom > /root/file; sync`)
    await waitForAgreement(
      t,
      id,
      'storage',
      (point) => point.storage_bytes,
      askStorage(id),
      (bytes) => bytes > storageBefore + 0.9 * FILE_BYTES,
    )

    await startPerl(id, SEND_STEADILY, PUBLIC_HOST, String(SENT_BYTES_PER_SEC))
    await waitForAgreement(
      t,
      id,
      'traffic',
      (point) => point.net_bytes_out_per_sec,
      askSentPerSecond(id),
      (rate) => rate > SENT_BYTES_PER_SEC / 2,
    )
    await destroySandbox(warren, id)
  })

  test('have a gap while the sandbox is paused, and are deleted with it', async () => {
    const { id } = await createSandbox(warren)
    await until(() => findNewest(id), 'the first sample')
    await pauseSandbox(warren, id)

    const { as_of, ...paused } = await getMetrics(id)
    const { points: before } = await getSeries(id)
    assert.deepEqual(Object.values(paused), [id, 0, 0, 0, 0, 0, 0])
    assert.ok(Date.parse(as_of) >= Date.parse(before.at(-1)!.ts))
    await resumeSandbox(warren, id)
    const { points } = await until(async () => {
      const series = await getSeries(id)
      return series.points.length > before.length && series
    }, 'a sample after the resume')

    assert.deepEqual(points.slice(0, before.length), before)
    assertInSteps(points)
    const ring = path.join(warren.instance.dataDir, 'metrics', `${id}.ring`)
    assert.ok(existsSync(ring))
    await destroySandbox(warren, id)
    await until(() => !existsSync(ring), 'its samples are deleted')
    assert.deepEqual((await getSeries(id)).points, [])
  })

  test('survive a host agent that is killed, and have zeros while a guest hangs', async () => {
    const { id } = await createSandbox(warren)
    await until(async () => ((await findNewest(id))?.memory_used_guest_bytes ?? 0) > 0, 'a sample of the guest')
    const { points: before } = await getSeries(id)

    const hostAgent = await getHostAgentPid(warren.instance.dataDir)
    kill(hostAgent)
    const { memory_limit_bytes } = await getMetrics(id)
    assert.equal(memory_limit_bytes, 256 * MIB)
    const { points } = await until(async () => {
      const series = await getSeries(id)
      return series.points.length > before.length && series
    }, 'a sample of the next host agent')
    assert.deepEqual(points.slice(0, before.length), before)
    assertInSteps(points)

    const qemu = findQemuPid(warren, id)!
    kill(qemu, 'SIGSTOP')
    try {
      const hung = await until(async () => {
        const newest = await findNewest(id)
        return newest?.memory_used_guest_bytes === 0 && newest
      }, 'a sample without an answer of the guest')
      assert.deepEqual([hung.storage_bytes, hung.memory_bytes > 0, hung.storage_limit_bytes > 0], [0, true, true])
    } finally {
      kill(qemu, 'SIGCONT')
    }
    await until(async () => ((await findNewest(id))?.memory_used_guest_bytes ?? 0) > 0, 'the guest answers again')
    await destroySandbox(warren, id)
  })
})

/** How many cores a busy guest gets depends on the machine, so the average is compared with the times of its QEMU process. */
async function compareWithProcess(t: TestContext, id: string): Promise<void> {
  const qemu = findQemuPid(warren, id)!
  const [startedAt, cpuMs] = [Date.now(), readCpuMs(qemu)]
  const metrics = await until(async () => {
    const found = await getMetrics(id)
    return Date.parse(found.as_of) - startedAt >= AVERAGED_MS && found
  }, 'the average covers the same time')
  const cores = (readCpuMs(qemu) - cpuMs) / (Date.now() - startedAt)

  t.diagnostic(`${metrics.cpu_cores_used} cores measured, ${cores.toFixed(4)} used by QEMU`)
  assert.ok(metrics.cpu_cores_used < 1.5 * cores && cores < 1.5 * metrics.cpu_cores_used)
  assert.ok(Math.abs(metrics.cpu_pct - 100 * metrics.cpu_cores_used) < 1 || metrics.cpu_pct === 100)
}

/** User and system time, in ticks of 10 ms. */
function readCpuMs(pid: number): number {
  const fields = readFileSync(`/proc/${pid}/stat`, 'utf8').split(') ')[1]!.split(' ')
  return (Number(fields[11]) + Number(fields[12])) * 10
}

function assertInSteps(points: MetricsPoint[]): void {
  const times = points.map(({ ts }) => Date.parse(ts))
  assert.ok(
    times.every((time) => time % 10_000 === 0),
    JSON.stringify(times),
  )
  assert.ok(
    times.every((time, i) => i === 0 || time > times[i - 1]!),
    JSON.stringify(times),
  )
}
