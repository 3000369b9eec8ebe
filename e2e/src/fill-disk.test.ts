/**
 * Fill-the-disk story: guests, uploads, pauses and builds run into a full volume that they share with PostgreSQL. Nothing that
 * was acknowledged is lost, PostgreSQL never runs out of space, and everything continues after space was freed.
 */
import assert from 'node:assert/strict'
import { existsSync, readFileSync, rmSync } from 'node:fs'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { addCleanUp } from '@warren/kit/testing/clean-up'
import { until } from '@warren/kit/testing/until'
import { checkChainOnDisk, startChain } from './support/hash-chain.ts'
import { getHostAgentPid, kill } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  pauseSandbox,
  request,
  requestOk,
  resumeSandbox,
  runShell,
  waitForStatus,
} from './support/sandboxes.ts'
import { cannotMount, fill, freeBytes, MIB, mountSmallDisk, unmountSmallDisk } from './support/small-disk.ts'
import { templateClient } from './support/templates.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

/** Enough for two bases, PostgreSQL, and twice what is left to fill. The floor is 256 MiB, guests stop below 128 MiB. */
const DISK_BYTES = 4_500 * MIB
/** For the writer and uploads. */
const TO_FILL_BYTES = 700 * MIB
const FLOOR_BYTES = 256 * MIB
/** Less than the reserve, and enough for PostgreSQL. */
const LEFT_BYTES = 64 * MIB
const NEARLY_FULL = /the disk of the host is nearly full/
const SEVERAL_WAIT = /^warren_host_guests_waiting_for_disk\{[^}]*\} [2-9]/m
const SOME_WAIT = /^warren_host_guests_waiting_for_disk\{[^}]*\} [1-9]/m
const WAITS = /stopped until the disk of the host has space/

const skip = cannotRunVms || cannotMount

async function start() {
  const disk = await mountSmallDisk(DISK_BYTES)
  const env = { WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0', WARREN_DISK_OVERCOMMIT: '100' }
  try {
    return { disk, instance: await startVmInstance(env, { dataDir: path.join(disk, 'data') }) }
  } finally {
    // Added here, it runs after Warren has stopped.
    addCleanUp({ after }, () => unmountSmallDisk(disk))
  }
}

const { disk, instance: warren } = await startUnlessSkipped(skip, start)

describe('a volume that fills up', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('stops writers, refuses what needs space, and keeps everything that was acknowledged', async () => {
    const templates = templateClient(warren)
    const [writer, chained, paused, uploaded] = [
      await createSandbox(warren),
      await createSandbox(warren),
      await createSandbox(warren),
      await createSandbox(warren),
    ]
    await startChain(warren, chained.id)
    await startChain(warren, paused.id)
    await pauseSandbox(warren, paused.id)
    const building = await templates.submit('endless', ENDLESS)
    await templates.untilLogged(building.id, 'written')
    // What the operator can delete later: more than the writer, which continues then, can write.
    const other = fill(disk, TO_FILL_BYTES)
    await runShell(warren, writer.id, startWriter(TO_FILL_BYTES + 100 * MIB))

    // The build and uploads continue while the disk fills up.
    const uploads = uploadUntilFull(uploaded.id)
    await until(
      async () => WAITS.test((await getSandbox(warren, writer.id)).status_reason ?? ''),
      'the writer is stopped',
    )
    const stored = await uploads
    await until(async () => SEVERAL_WAIT.test(await readMetrics()), 'the VM of the build is stopped')

    assert.ok(freeBytes(disk) < FLOOR_BYTES)
    assert.equal((await getSandbox(warren, writer.id)).status, 'running')
    for (const refused of [
      await request(warren, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb' }),
      await request(warren, 'POST', `/sandboxes/${paused.id}/fork`, {}),
      await request(warren, 'POST', '/templates', { name: 'refused', dockerfile: DOCKERFILE }),
    ]) {
      assert.equal(refused.status, 503)
      assert.match(String(refused.data.message), NEARLY_FULL)
    }
    // A host agent that takes over continues guests whose CPUs it finds stopped. The writer must not get far.
    kill(await getHostAgentPid(warren.instance.dataDir))
    await until(() => warren.instance.output().includes('the host agent ended'), 'it has ended')
    await until(async () => SOME_WAIT.test(await readMetrics()), 'the writer is stopped again')

    // Another program takes the rest. The space that is reserved for PostgreSQL is released, and pauses do not fit any more.
    fill(disk, LEFT_BYTES)
    await until(() => !existsSync(path.join(disk, 'data', 'postgres.reserve')), 'the reserve is released')
    fill(disk, LEFT_BYTES)
    await requestOk(warren, 'POST', `/sandboxes/${chained.id}/pause`)
    const kept = await waitForStatus(warren, chained.id, 'running')
    assert.match(kept.status_reason ?? '', /no space for the saved memory/)
    await requestOk(warren, 'PATCH', `/sandboxes/${chained.id}`, { auto_pause_after_seconds: 3600 })
    assertDatabaseHadSpace()

    rmSync(other)

    await untilRunning(writer.id)
    await destroySandbox(warren, (await createSandbox(warren)).id)
    assert.ok(Number(await runShell(warren, writer.id, CHECK_WRITER)) > 0)
    await checkChainOnDisk(warren, chained.id, 1)
    await resumeSandbox(warren, paused.id)
    await checkChainOnDisk(warren, paused.id, 1)
    for (const { name, size } of stored) {
      assert.equal(Number(await runShell(warren, uploaded.id, `stat -c %s /root/${name}`)), size)
    }
    await pauseSandbox(warren, chained.id)
    await resumeSandbox(warren, chained.id)
    await checkChainOnDisk(warren, chained.id, 1)
    await templates.delete(building.id)
    await templates.build('later', DOCKERFILE)
    assertDatabaseHadSpace()
    for (const { id } of [writer, chained, paused, uploaded]) await destroySandbox(warren, id)
  })
})

/** Writes as long as it runs, and takes no more space meanwhile. */
const ENDLESS = `FROM debian:13
RUN while :; do head -c 100000 /dev/urandom > /file; sync; echo written; sleep 0.1; done
`
const DOCKERFILE = 'FROM debian:13\nRUN head -c 50000000 /dev/zero > /large\n'

const FILE_BYTES = 4096 * 4096
/** Each file is synced before its name and sum are, so every line of `acked` is a promise of the guest's disk. */
const WRITER = `use IO::Handle;
open(my $acked, '>>', '/root/acked') or die;
for my $n (1 .. $ARGV[0]) {
  my $piece = join('', map { chr rand 256 } 1 .. 4096);
  open(my $out, '>', "/root/file$n") or die; syswrite($out, $piece) for 1 .. 4096; $out->sync or die; close $out;
  syswrite($acked, "$n " . unpack('%32C*', $piece) . "\\n"); $acked->sync or die;
}
`
/** Until it has written so much, or is stopped with its guest. */
const startWriter = (bytes: number): string => `cat > /root/fill.pl <<'END'
${WRITER}END
setsid perl /root/fill.pl ${Math.ceil(bytes / FILE_BYTES)} >/root/fill.log 2>&1 </dev/null & echo $! > /root/fill.pid`

/** Stops the writer, and prints how many files are as they were acknowledged. */
const CHECK_WRITER = `kill $(cat /root/fill.pid) 2>/dev/null; sync; echo 3 > /proc/sys/vm/drop_caches
perl -e 'open(my $in, "<", "/root/acked") or die; my $n = 0;
while (<$in>) { my ($name, $sum) = split; open(my $file, "<", "/root/file$name") or die "file$name: $!";
  sysread($file, my $piece, 4096); die "file$name differs" if unpack("%32C*", $piece) != $sum || -s $file != 4096 * 4096; $n++ }
print $n'; rm -f /root/file* || dmesg | tail -30 >&2`

/** Returns the files that were acknowledged. */
async function uploadUntilFull(id: string): Promise<{ name: string; size: number }[]> {
  const stored: { name: string; size: number }[] = []
  const size = 8 * MIB
  const { baseUrl, key } = warren.instance
  for (let n = 1; freeBytes(disk) > FLOOR_BYTES / 2 && n < 200; n++) {
    const name = `upload${n}`
    const url = `${baseUrl}/v1/sandboxes/${id}/files?path=/root/${name}`
    const signal = AbortSignal.timeout(10_000)
    const response = await fetch(url, {
      ...{ method: 'PUT', headers: { 'x-api-key': key }, body: Buffer.alloc(size, n), signal },
    }).catch(() => undefined) // The guest is stopped.
    if (!response) break
    if (response.ok) stored.push({ name, size })
  }
  return stored
}

const untilRunning = (id: string) =>
  until(async () => {
    const { status, status_reason } = await getSandbox(warren, id)
    return status === 'running' && !WAITS.test(status_reason ?? '')
  }, 'the guest continues')

function assertDatabaseHadSpace(): void {
  const log = readFileSync(path.join(warren.instance.dataDir, 'log', 'postgres.log'), 'utf8')
  assert.doesNotMatch(log, /no space left|ENOSPC|PANIC|could not (write|extend|create)/i)
}

async function readMetrics(): Promise<string> {
  const url = /^ +metrics +(\S+)$/m.exec(warren.instance.output())![1]!
  return (await fetch(url)).text()
}
