import assert from 'node:assert/strict'
import { test } from 'node:test'
import { createTestApp } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'

const { deps, user, get } = await createTestApp()

test('the owner of a sandbox sees an empty list of disks; for other users it is not found', async () => {
  const [ada, bob] = [await user(), await user()]
  const { id } = await insertSandbox(deps.db, ada.id, 'running')

  const hers = await get(`/v1/sandboxes/${id}/disks?limit=500`, ada.key)
  const his = await get(`/v1/sandboxes/${id}/disks`, bob.key)

  assert.deepEqual(hers.body.data, { data: [], pagination: { total: 0, limit: 500, offset: 0, count: 0 } })
  assert.deepEqual([his.status, his.body.data.message], [404, 'sandbox not found'])
})
