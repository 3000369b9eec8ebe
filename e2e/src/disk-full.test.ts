/** A full host disk: a pause fails but the sandbox keeps running, saved data survives, and freeing space repairs all. */
import assert from 'node:assert/strict'
import { rmSync } from 'node:fs'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { addCleanUp } from '@warren/kit/testing/clean-up'
import { until } from '@warren/kit/testing/until'
import { checkChain, checkChainOnDisk, startChain } from './support/hash-chain.ts'
import {
  createSandbox,
  destroySandbox,
  getSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  waitForStatus,
} from './support/sandboxes.ts'
import { cannotMount, fill, MIB, mountSmallDisk, unmountSmallDisk } from './support/small-disk.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

/** Enough for the image, one base and a few sandboxes. */
const DISK_BYTES = 2_500 * MIB

const skip = cannotRunVms || cannotMount

/** The data directory is on a small disk; the database is elsewhere. */
async function start() {
  const postgres = await startTestPostgres()
  const disk = await mountSmallDisk(DISK_BYTES)
  const env = {
    DATABASE_URL: postgres.url,
    WARREN_POOL_MIB: '0',
    WARREN_STANDBY_MIB: '0',
    WARREN_DISK_OVERCOMMIT: '100',
  }
  try {
    return { disk, instance: await startVmInstance(env, { dataDir: path.join(disk, 'data') }) }
  } finally {
    // Added here, it runs after Warren has stopped.
    addCleanUp({ after }, async () => {
      await unmountSmallDisk(disk)
      await postgres.stop()
    })
  }
}

const { disk, instance: warren } = await startUnlessSkipped(skip, () => start())

describe('on a full host disk', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('a pause fails with the reason, the sandbox keeps running, and saved generations survive', async () => {
    const [one, two] = [await createSandbox(warren), await createSandbox(warren)]
    for (const { id } of [one, two]) await startChain(warren, id)
    await pauseSandbox(warren, one.id)
    await pauseSandbox(warren, two.id)
    await resumeSandbox(warren, one.id)
    const seen = await checkChain(warren, one.id, 1)
    const ballast = fill(disk)

    await requestOk(warren, 'POST', `/sandboxes/${one.id}/pause`)
    const after = await waitForStatus(warren, one.id, 'running')
    assert.match(after.status_reason ?? '', /no space/i)
    rmSync(ballast)

    await checkChainOnDisk(warren, one.id, seen)
    await pauseSandbox(warren, one.id)
    for (const { id } of [one, two]) await resumeSandbox(warren, id)
    for (const { id } of [one, two]) await checkChainOnDisk(warren, id, 1)
    await destroySandbox(warren, two.id)
    await destroySandbox(warren, one.id)
  })

  test('a guest that writes waits for space instead of losing data', async () => {
    const { id } = await createSandbox(warren)
    await runShell(warren, id, 'head -c 1000000 /dev/urandom > /root/noise; sync')
    const printedBefore = warren.instance.output().length // The story above may have stopped a guest as well.
    const ballast = fill(disk)
    const write = 'for i in 1 2 3 4 5 6 7 8; do cat /root/noise; done > /root/more; sync; sha256sum < /root/more'
    const written = runShell(warren, id, write)
    // Files of the sandboxes deleted above are removed in the background, so space may become free meanwhile.
    const isStopped = () => {
      fill(disk)
      return warren.instance.output().slice(printedBefore).includes('the host disk is full or failing')
    }
    await until(isStopped, 'the guest is stopped')

    rmSync(ballast)

    const direct = await runShell(warren, id, 'for i in 1 2 3 4 5 6 7 8; do cat /root/noise; done | sha256sum')
    assert.equal(await written, direct)
    assert.equal((await getSandbox(warren, id)).status, 'running')
    await destroySandbox(warren, id)
  })
})
