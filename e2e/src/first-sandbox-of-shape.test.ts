/** The first sandbox of an image and shape waits until the base is booted; a slow boot is not a failure. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { SLOWNESS } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { createSandbox, destroySandbox, request, runShell } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const points = await mkdtemp(path.join(tmpdir(), 'warren-points-'))
after(() => rm(points, { recursive: true }))
/** On a slow machine a clone, too, needs longer. The setting allows no more than 50. */
const LIMIT_S = Math.min(Math.ceil(20 * SLOWNESS), 50)
// Not shared: another instance on this machine may have booted the same base.
const env = { WARREN_SHARED_BASES: 'none', WARREN_CRASH_POINTS: points, WARREN_BOOT_LIMIT_SECONDS: String(LIMIT_S) }
const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance(env))

describe('the first sandbox of a shape', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('gets 503 while the base boots for too long, and is created when it is ready', async () => {
    const hold = path.join(points, 'host.base.saved')
    const small = { disk_mib: 4096 } // Another disk size needs another base.
    await writeFile(hold, 'hold')

    const early = await request(warren, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb', ...small })
    await until(() => existsSync(`${hold}.reached`), 'the base is booted')
    await rm(hold)
    const { id } = await createSandbox(warren, small)

    assert.deepEqual([early.status, early.data.message], [503, 'rootfs debian:13 is not ready'])
    assert.equal(await runShell(warren, id, 'echo here'), 'here')
    await destroySandbox(warren, id)
  })
})
