import assert from 'node:assert/strict'
import { readdir } from 'node:fs/promises'
import { test } from 'node:test'
import { isDatabaseUnreachable } from '@warren/kit/postgres/connection'
import { startTestPostgres } from '@warren/kit/postgres/testing'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { createTestDatabase } from '../testing/database.ts'
import { batched } from './batch.ts'
import { connectDatabase } from './connect.ts'
import { listen } from './listen.ts'
import { migrate } from './migrate.ts'

const SILENT = { warn() {} }

test('several processes can migrate an empty database at the same time', async () => {
  const server = await startTestPostgres()
  const databases = Array.from({ length: 4 }, () => connectDatabase(server.url, SILENT, { max: 4 }))
  try {
    await Promise.all(databases.map((database) => migrate(database)))

    const { rows } = await databases[0]!.pool.query('select name from kysely_migration order by name')
    const files = await readdir(new URL('./migrations/', import.meta.url))
    assert.deepEqual(
      rows.map((row) => `${row.name}.sql`),
      files.sort(),
    )
  } finally {
    for (const database of databases) await database.close()
    await server.stop()
  }
})

test('a listener reconnects after its connection was terminated, and reports both transitions', async () => {
  const database = await createTestDatabase()
  const events: string[] = []
  const listener = listen(
    database.url,
    'test_channel',
    {
      onNotification: (payload) => events.push(payload),
      onConnected: () => events.push('connected'),
      onDisconnected: () => events.push('disconnected'),
    },
    SILENT,
  )
  await until(() => events.length === 1)

  await sql`select pg_terminate_backend(pid) from pg_stat_activity
    where application_name = 'warren listens to test_channel'`.execute(database.db)
  await until(() => events.length === 3)
  await sql`select pg_notify('test_channel', 'hello')`.execute(database.db)
  await until(() => events.length === 4)
  listener.close()

  assert.deepEqual(events, ['connected', 'disconnected', 'connected', 'hello'])
})

test('lookups that arrive while a statement runs share the next one, each key once', async () => {
  const batches: string[][] = []
  const releases: (() => void)[] = []
  const find = batched(async (keys: string[]) => {
    batches.push(keys)
    await new Promise<void>((resolve) => releases.push(resolve))
    return new Map(keys.map((key) => [key, key.toUpperCase()]))
  })

  const first = find('a')
  await until(() => releases.length === 1)
  const rest = Promise.all([find('b'), find('c'), find('b'), find('a')])
  releases[0]!()
  await until(() => releases.length === 2)
  releases[1]!()

  assert.deepEqual([await first, await rest], ['A', ['B', 'C', 'B', 'A']])
  assert.deepEqual(batches, [['a'], ['b', 'c', 'a']])
})

test('a failing batch fails its own lookups and none after it', async () => {
  let broken = true
  const find = batched(async (keys: number[]) => {
    if (broken) throw new Error('broken')
    return new Map(keys.map((key) => [key, key * 2]))
  })

  const results = await Promise.allSettled([find(1), find(2)])
  broken = false

  assert.deepEqual(
    results.map((result) => result.status),
    ['rejected', 'rejected'],
  )
  assert.equal(await find(3), 6)
})

test('an SQL error is not mistaken for an unreachable server', async () => {
  const database = await createTestDatabase()
  const errorOf = (text: string) => database.pool.query(text).then(undefined, (error: unknown) => error)

  assert.equal(isDatabaseUnreachable(await errorOf('select nonsense')), false)
  assert.equal(isDatabaseUnreachable(await errorOf('select pg_terminate_backend(pg_backend_pid())')), true)
  assert.equal(isDatabaseUnreachable(new TypeError('undefined is not a function')), false)
  const unreachable = connectDatabase('postgresql://x@/x?host=/nonexistent', SILENT)
  assert.equal(isDatabaseUnreachable(await unreachable.pool.query('select 1').catch((error: unknown) => error)), true)
  await unreachable.close()
})
