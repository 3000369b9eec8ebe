/** The first sandbox of an image and a shape waits until that machine was booted once; a slow boot is no failure. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { call, create, destroy, sh } from './lifecycle.ts'
import { cannotRunVms, startVmBox, VM_STORIES_LIMIT_MS } from './vm-box.ts'

const points = await mkdtemp(path.join(tmpdir(), 'warren-points-'))
after(() => rm(points, { recursive: true }))
const LIMIT_S = 20
const env = { WARREN_CRASH_POINTS: points, WARREN_BOOT_LIMIT_SECONDS: String(LIMIT_S) }
const it = cannotRunVms ? (undefined as never) : await startVmBox(env)

describe('the first of a shape', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('that is not ready in time is told to come again, and then it is', async () => {
    const hold = path.join(points, 'host.base.saved')
    const small = { disk_mib: 4096 } // Smaller than usual: a machine of its own.
    await writeFile(hold, 'hold')

    const early = await call(it, 'POST', '/sandboxes', { shape: 's-1vcpu-256mb', ...small })
    await until(() => existsSync(`${hold}.reached`), 'it is booted')
    await rm(hold)
    const { id } = await create(it, small)

    assert.deepEqual([early.status, early.data.message], [503, 'rootfs debian:13 is not ready'])
    assert.equal(await sh(it, id, 'echo here'), 'here')
    await destroy(it, id)
  })
})
