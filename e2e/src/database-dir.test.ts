/** The embedded database on another volume than sandboxes. */
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createDataDir, startExpectingFailure, startInstance, stop } from './support/instance.ts'

test('the database and its reserve are where WARREN_DATABASE_DIR says, and a folder that was not moved is an error', async (t) => {
  const dataDir = await createDataDir(t)
  const databaseDir = path.join(path.dirname(dataDir), 'database')
  const env = { WARREN_VMS: 'off', WARREN_GATEWAY: 'off', WARREN_DATABASE_DIR: databaseDir }

  const instance = await startInstance(dataDir, { env })
  assert.ok(existsSync(path.join(databaseDir, 'postgres', 'PG_VERSION')))
  assert.equal(existsSync(path.join(dataDir, 'postgres')), false)
  await until(() => existsSync(path.join(databaseDir, 'postgres.reserve')), 'space is reserved for PostgreSQL')
  assert.equal(await stop(instance), 0)

  const other = path.join(path.dirname(dataDir), 'other')
  const plain = await startInstance(path.join(path.dirname(dataDir), 'plain'), {
    env: { ...env, WARREN_DATABASE_DIR: '' },
  })
  assert.equal(await stop(plain), 0)
  const failed = await startExpectingFailure(plain.dataDir, { env: { ...env, WARREN_DATABASE_DIR: other } })

  assert.match(
    failed.output,
    /the database is in .*postgres, and WARREN_DATABASE_DIR is .*other; move the folder there first/,
  )
  assert.equal(existsSync(path.join(other, 'postgres')), false)
})
