/**
 * The disk of a running sandbox grows while its guest writes. At every step a process is killed: afterwards the size in the
 * API, the block device and the file system agree without help, and nothing that was written is lost.
 */
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { checkDisk } from './support/check-disk.ts'
import { checkChain, checkChainOnDisk, startChain } from './support/hash-chain.ts'
import { kill } from './support/instance.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
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

/** Smaller than the smallest size of a resize, so that all sizes are a growth. */
const START_MIB = 4_096
const SIZES = [10_240, 20_480, 30_720, 40_960, 51_200, 61_440]
const SETTLE_LIMIT_MS = 60_000
/** Of the requirement, on a quiet machine. */
const GROW_LIMIT_MS = scaleLimit(1_000)

const folder = mkdtempSync(path.join(tmpdir(), 'warren-points-'))
after(() => rmSync(folder, { recursive: true }))
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ WARREN_CRASH_POINTS: folder, WARREN_POOL_MIB: '0', WARREN_STANDBY_MIB: '0' }),
)

describe('a disk grows', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('through all sizes while the guest writes, without a restart, and survives pause, resume and fork', async () => {
    const { id } = await createSandbox(warren, { disk_mib: START_MIB })
    await startChain(warren, id)
    await startFileWriter(id)
    const before = await runShell(warren, id, 'cat /proc/sys/kernel/random/boot_id; cat /root/writer.pid')
    const tooks: number[] = []

    for (const size of SIZES) {
      const startedAt = performance.now()
      const grown = await requestOk(warren, 'POST', `/sandboxes/${id}/resize`, { disk_mib: size })
      tooks.push(performance.now() - startedAt)
      assert.deepEqual(grown, { id, disk_mib: size })
      assert.deepEqual(await readSizes(id), sizes(size))
    }

    assert.ok(Math.min(...tooks) < GROW_LIMIT_MS, `took ${tooks.map(Math.round).join(', ')} ms`)
    assert.equal(await runShell(warren, id, 'cat /proc/sys/kernel/random/boot_id; cat /root/writer.pid'), before)
    const seen = await checkChain(warren, id, 1)
    await useNewSpace(id)
    await stopFileWriter(id)

    await pauseSandbox(warren, id)
    await checkDisk(warren, id)
    const fork = await forkSandbox(warren, id)
    await resumeSandbox(warren, id)
    for (const one of [id, fork.id]) {
      assert.deepEqual(await readSizes(one), sizes(SIZES.at(-1)!))
      await checkChainOnDisk(warren, one, seen)
      await checkFiles(one)
    }
    const live = await forkSandbox(warren, fork.id, { live: true })
    assert.deepEqual(await readSizes(live.id), sizes(SIZES.at(-1)!))
    for (const one of [id, fork.id, live.id]) await destroySandbox(warren, one)
  })

  test('although the host agent or the control plane is killed at any step', async () => {
    const { id } = await createSandbox(warren, { disk_mib: START_MIB })
    await startChain(warren, id)
    const points = [
      ...['host.resize.recorded', 'host.resize.device', 'host.resize.grown', 'host.resize.done'],
      ...['resize.begun', 'resize.grown'],
    ]
    let seen = 1

    for (const [i, point] of points.entries()) {
      const size = SIZES[i]!
      writeFileSync(path.join(folder, point), 'kill')
      await postResize(id, size, point).catch(() => undefined)
      assert.ok(existsSync(path.join(folder, `${point}.reached`)), `${point} was reached`)
      rmSync(path.join(folder, `${point}.reached`)) // The next test waits for some of the same.

      await waitForSizes(id, size, point)
      seen = await checkChainOnDisk(warren, id, seen)
      const repeated = await postResize(id, size, point)
      assert.deepEqual(
        [repeated.status, await repeated.json()],
        [200, { status: 'success', data: { id, disk_mib: size } }],
      )
    }

    await pauseSandbox(warren, id)
    await checkDisk(warren, id)
    await destroySandbox(warren, id)
  })

  test('although QEMU is killed at any step, also if the sandbox continues from a generation before that', async () => {
    const { id } = await createSandbox(warren, { disk_mib: START_MIB })
    await startChain(warren, id)
    const seen = await checkChainOnDisk(warren, id, 1)

    for (const [i, step] of ['device', 'recorded', 'grown'].entries()) {
      const size = SIZES[i]!
      const point = `host.resize.${step}`
      // The first one was never saved, so it is booted from its disk.
      if (i === 1) {
        await pauseSandbox(warren, id)
        await resumeSandbox(warren, id)
      }
      writeFileSync(path.join(folder, point), 'hold')
      const key = `qemu-${point}`
      const response = postResize(id, size, key).catch(() => undefined)
      await until(() => existsSync(path.join(folder, `${point}.reached`)), `${point} is reached`, SETTLE_LIMIT_MS)
      kill(findQemuPid(warren, id)!)
      rmSync(path.join(folder, point))
      rmSync(path.join(folder, `${point}.reached`))
      await response

      await waitForSizes(id, size, point)
      assert.ok(Number(await runShell(warren, id, 'perl /root/checker.pl')) >= seen, point)
      // The sweep may still repeat it, and would reach the next point before the next request does. 400: it has the size.
      const isFinished = async () => [200, 400].includes((await postResize(id, size, key)).status)
      await until(isFinished, `the resize to ${size} MiB is finished`, SETTLE_LIMIT_MS)
    }
    await destroySandbox(warren, id)
  })
})

const sizes = (mib: number) => ({ api: mib, device: mib, fileSystem: mib })

/** In MiB. The size of the file system is that of its superblock. */
async function readSizes(id: string) {
  const { disk_mib } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
  const script = `cat /sys/class/block/vda/size; dd if=/dev/vda bs=4 skip=257 count=1 2>/dev/null | od -An -tu4`
  const [sectors, blocks] = (await runShell(warren, id, script)).split(/\s+/).map(Number)
  return { api: disk_mib, device: sectors! / 2048, fileSystem: blocks! / 256 }
}

/** Resumes the sandbox if it must, as its user would. */
async function waitForSizes(id: string, mib: number, point: string): Promise<void> {
  const seen: string[] = []
  const note = (what: unknown) => {
    const text = typeof what === 'string' ? what : JSON.stringify(what)
    if (seen.at(-1) !== text) seen.push(text)
  }
  const check = async () => {
    try {
      const { status, status_reason } = await getSandbox(warren, id)
      note({ status, status_reason })
      if (status === 'error' || status === 'paused') note(await request(warren, 'POST', `/sandboxes/${id}/resume`))
      if (status !== 'running') return false
      const found = await readSizes(id)
      note(found)
      return found.api === mib && found.device === mib && found.fileSystem === mib
    } catch (error) {
      note(`${error}`) // A process is being restarted.
      return false
    }
  }
  await until(check, `API, device and file system have ${mib} MiB after ${point}`, SETTLE_LIMIT_MS).catch((error) => {
    throw new Error(`${error.message}. Seen: ${seen.slice(-10).join('; ')}`)
  })
}

const postResize = (id: string, disk_mib: number, key: string): Promise<Response> =>
  fetch(`${warren.instance.baseUrl}/v1/sandboxes/${id}/resize`, {
    method: 'POST',
    headers: { 'x-api-key': warren.instance.key, 'idempotency-key': key },
    body: JSON.stringify({ disk_mib }),
  })

/** Writes files of random bytes and their checksums, as fast as the guest can, in 64 MiB that are used again and again. */
async function startFileWriter(id: string): Promise<void> {
  const script = `mkdir -p /root/files; cd /root/files
( n=0; while [ ! -e stop ]; do n=$((n + 1)); f=f$((n % 32))
    head -c 2097152 /dev/urandom > new; sync new; sha256sum < new > new.sum
    mv new $f; mv new.sum $f.sum; echo $n > count
  done; touch stopped ) >writer.log 2>&1 </dev/null &`
  await runShell(warren, id, script)
}

async function stopFileWriter(id: string): Promise<void> {
  await runShell(
    warren,
    id,
    'cd /root/files; touch stop; for i in $(seq 300); do [ -e stopped ] && exit; sleep 0.1; done; exit 1',
  )
  await checkFiles(id)
}

/** From the disk, not from the page cache. */
async function checkFiles(id: string): Promise<void> {
  const script = `sync; echo 3 > /proc/sys/vm/drop_caches; cd /root/files; [ $(cat count) -ge 4 ]
for sum in f*.sum; do sha256sum < \${sum%.sum} | cmp - $sum || exit 1; done`
  await runShell(warren, id, `set -e; ${script}`)
}

/** Most of the disk belongs to one file, and what is written to its end is read back. */
async function useNewSpace(id: string): Promise<void> {
  const end = 50_000
  await runShell(
    warren,
    id,
    `set -e; fallocate -l ${end + 4}M /root/big; head -c 4194304 /dev/urandom > /root/part
dd if=/root/part of=/root/big bs=1M seek=${end} conv=notrunc,fsync 2>/dev/null; echo 3 > /proc/sys/vm/drop_caches
dd if=/root/big bs=1M skip=${end} 2>/dev/null | cmp - /root/part; rm /root/big`,
  )
}
