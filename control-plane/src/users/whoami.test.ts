import assert from 'node:assert/strict'
import { test } from 'node:test'
import { SANDBOX_STATUSES } from '@warren/protocol'
import { createTestApp } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'

const { deps, user, get } = await createTestApp()

test('whoami counts running, paused and other current sandboxes, and all sandboxes ever created', async () => {
  const { id, key } = await user()
  assert.deepEqual((await get('/v1/whoami', key)).body.data, {
    user_id: id,
    stats: { running: 0, paused: 0, other: 0, total: 0 },
  })

  for (const status of SANDBOX_STATUSES) await insertSandbox(deps.db, id, status)

  assert.deepEqual((await get('/v1/whoami', key)).body.data.stats, { running: 1, paused: 1, other: 6, total: 10 })
})
