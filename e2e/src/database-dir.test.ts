/** The embedded database on another volume than sandboxes. */
import assert from 'node:assert/strict'
import { existsSync, statSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { addCleanUp } from '@warren/kit/testing/clean-up'
import { until } from '@warren/kit/testing/until'
import { createDataDir, killProcesses, startExpectingFailure, startInstance, stop } from './support/instance.ts'
import { cannotMount, fill, MIB, mountSmallDisk, unmountSmallDisk } from './support/small-disk.ts'

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
    /the database is in .*postgres, and WARREN_DATABASE_DIR is .*other; set it to .*plain, or move the folder to .*other/,
  )
  assert.equal(existsSync(path.join(other, 'postgres')), false)
})

/** The data directory and the folder of the database, which another volume could have. */
async function setUp(t: TestContext) {
  const dataDir = await createDataDir(t)
  const home = path.dirname(dataDir)
  const databaseDir = path.join(home, 'database')
  const env = { WARREN_VMS: 'off', WARREN_GATEWAY: 'off', WARREN_DATABASE_DIR: databaseDir }
  return { home, dataDir, databaseDir, env }
}

test('a start that does not find its database fails and creates none', async (t) => {
  const { home, dataDir, databaseDir, env } = await setUp(t)
  const instance = await startInstance(dataDir, { env })
  const { status } = await fetch(`${instance.baseUrl}/v1/whoami`, { headers: { 'X-Api-Key': instance.key } })
  assert.equal(status, 200)
  assert.equal(await stop(instance), 0)

  const without = await startExpectingFailure(dataDir, { env: { ...env, WARREN_DATABASE_DIR: '' } })
  assert.match(without.output, /the database is in .*database\/postgres, and WARREN_DATABASE_DIR is not set/)
  assert.equal(without.code, 1)
  assert.equal(existsSync(path.join(dataDir, 'postgres')), false)

  await rename(databaseDir, path.join(home, 'unmounted'))
  const unmounted = await startExpectingFailure(dataDir, { env })
  assert.match(unmounted.output, /the database is not in .*database\/postgres, where it was; mount its volume/)
  assert.equal(existsSync(databaseDir), false)

  await rename(path.join(home, 'unmounted'), databaseDir)
  await rm(path.join(dataDir, 'database.json')) // As a version without this record left it.
  for (let i = 0; i < 2; i++) {
    const again = await startInstance(dataDir, { env })
    const { status } = await fetch(`${again.baseUrl}/v1/whoami`, { headers: { 'X-Api-Key': instance.key } })
    assert.equal(status, 200)
    assert.equal(await stop(again), 0)
  }
})

test('a second data directory cannot use the database of a Warren that runs', async (t) => {
  const { home, dataDir, databaseDir, env } = await setUp(t)
  const first = await startInstance(dataDir, { env })
  const whoami = async () => (await fetch(`${first.baseUrl}/v1/whoami`, { headers: { 'X-Api-Key': first.key } })).status

  const second = await startExpectingFailure(path.join(home, 'second'), { env })
  // The data directory of one that runs is not a place for the database of another either.
  const third = await startExpectingFailure(path.join(home, 'third'), { env: { ...env, WARREN_DATABASE_DIR: dataDir } })

  assert.ok(second.output.includes(`Warren already runs on ${databaseDir}, with another data directory`), second.output)
  assert.ok(third.output.includes(`Warren already runs on ${dataDir}, with another data directory`), third.output)
  assert.equal(await whoami(), 200)
  assert.doesNotMatch(first.output(), /PostgreSQL ended/)
  assert.equal(await stop(first), 0)
})

const cannotFill = process.getuid?.() === 0 ? cannotMount : 'needs root'

test('on a full volume, Warren starts with the space that was reserved', { skip: cannotFill }, async (t) => {
  const disk = await mountSmallDisk(700 * MIB)
  addCleanUp(t, async () => {
    await killProcesses(disk)
    await unmountSmallDisk(disk)
  })
  const dataDir = path.join(disk, 'data')
  const env = { WARREN_VMS: 'off', WARREN_GATEWAY: 'off' }
  const file = path.join(dataDir, 'postgres.reserve')
  const first = await startInstance(dataDir, { env })
  await until(() => existsSync(file) && statSync(file).size === 32 * MIB, 'the space is reserved')
  assert.equal(await stop(first), 0)

  fill(disk)
  const second = await startInstance(dataDir, { env })

  assert.equal(existsSync(file), false)
  assert.match(second.output(), /released 32 MiB that were reserved for PostgreSQL/)
  const { status } = await fetch(`${second.baseUrl}/v1/whoami`, { headers: { 'X-Api-Key': first.key } })
  assert.equal(status, 200)
  assert.equal(await stop(second), 0)
})
