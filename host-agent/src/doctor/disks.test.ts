import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { test } from 'node:test'
import { skipReason } from '../net/testing/host.ts'
import { checkS3Proxy } from './disks.ts'

const ROOT = { env: { WARREN_DISKS: 'on' }, isRoot: true }

test('the S3 proxy starts in its jail', { skip: skipReason }, async () => {
  assert.deepEqual(await checkS3Proxy(ROOT), { ok: true, detail: 'it starts in its jail' })
})

test('one that cannot start is reported with what to do', { skip: skipReason }, async () => {
  const start = () => spawn('false', { stdio: ['ignore', 'ignore', 'pipe', 'pipe'] })

  const result = await checkS3Proxy(ROOT, start)

  assert.match(result.detail, /^sandboxes cannot mount disks: .*exit code 1/)
  assert.ok(!result.ok && /WARREN_DISKS=off/.test(result.fix))
})

test('nothing is started while disks are switched off, or by an ordinary user', async () => {
  const start = () => assert.fail('it was started')

  for (const machine of [
    { ...ROOT, env: { WARREN_DISKS: 'off' } },
    { ...ROOT, isRoot: false },
  ]) {
    assert.equal((await checkS3Proxy(machine, start)).ok, true)
  }
})
