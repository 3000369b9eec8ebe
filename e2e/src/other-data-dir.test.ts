/** A database of DATABASE_URL belongs to the data directory with the VMs of its sandboxes. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { after, describe, test } from 'node:test'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { createDataDir, startExpectingFailure, stop } from './support/instance.ts'
import { createSandbox, getSandbox, pauseSandbox, resumeSandbox, runShell } from './support/sandboxes.ts'
import {
  cannotRunVms,
  startUnlessSkipped,
  startVmInstance,
  VM_ENV,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const server = await startTestPostgres()
const env = { DATABASE_URL: server.url, WARREN_SECRETS_KEY: randomBytes(32).toString('hex'), WARREN_POOL_MIB: '0' }
const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance(env))
after(() => server.stop())

describe('another data directory', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('does not start on the database, and the sandboxes of the right one are not lost', async (t) => {
    const { id } = await createSandbox(warren)
    await runShell(warren, id, 'echo kept > /root/file')
    await pauseSandbox(warren, id)
    assert.equal(await stop(warren.instance), 0)

    const { code, output } = await startExpectingFailure(await createDataDir(t), { env: { ...VM_ENV, ...env } })
    await warren.restart()

    assert.equal(code, 1)
    assert.ok(output.includes(`belongs to another data directory, which was ${warren.instance.dataDir}`), output)
    assert.match(output, /its sandboxes \(1\) and templates \(0\)/)
    assert.equal((await getSandbox(warren, id)).status, 'paused')
    await resumeSandbox(warren, id)
    assert.equal(await runShell(warren, id, 'cat /root/file'), 'kept')
  })
})
