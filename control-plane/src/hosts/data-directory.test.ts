import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { createTestApp } from '../testing/app.ts'
import { insertSandbox } from '../testing/sandboxes.ts'
import { bindDataDirectory } from './data-directory.ts'

const { deps, user } = await createTestApp()
const { db } = deps
const [first, other] = [
  { hostId: 'h1', id: 'id-1', folder: '/srv/first' },
  { hostId: 'h1', id: 'id-2', folder: '/srv/other' },
]
await sql`insert into hosts (id, region, status, mem_mib, images) values ('h1', 'eu', 'active', 1, '[]'), ('h2', 'eu', 'active', 1, '[]')`.execute(
  db,
)
const findBound = async () =>
  (await sql`select host_id as "hostId", id, folder from data_directories`.execute(db)).rows[0]

test.beforeEach(async () => {
  await sql`delete from data_directories`.execute(db)
  await bindDataDirectory(db, first, false)
})

test('a host without sandboxes takes any data directory, and one that was moved keeps its id', async () => {
  const { id: owner } = await user()
  await insertSandbox(db, owner, 'paused', { host_id: 'h2' })

  await bindDataDirectory(db, other, false)
  assert.deepEqual(await findBound(), other)

  const moved = { ...other, folder: '/srv/moved' }
  await bindDataDirectory(db, moved, false)
  assert.deepEqual(await findBound(), moved)
})

test('a database with a sandbox refuses another data directory and says which is the right one', async () => {
  const { id: owner } = await user()
  const { id } = await insertSandbox(db, owner, 'paused', { host_id: 'h1' })

  await assert.rejects(bindDataDirectory(db, other, false), {
    message:
      'the database belongs to another data directory, which was /srv/first: its sandboxes (1) and templates (0) have their files ' +
      'there, not in /srv/other. None of them was changed. Set WARREN_DATA_DIR to where it is now. If it no longer exists, start once ' +
      'with WARREN_ADOPT_DATABASE=on, which gives them up',
  })
  assert.deepEqual(await findBound(), first)
  await bindDataDirectory(db, first, false)

  await sql`update sandboxes set status = 'destroyed' where id = ${id}`.execute(db)
  await bindDataDirectory(db, other, false)
  assert.deepEqual(await findBound(), other)
})

test('the operator can give up the sandboxes of a data directory that is lost', async () => {
  const { id: owner } = await user()
  await insertSandbox(db, owner, 'running', { host_id: 'h1' })

  await bindDataDirectory(db, other, true)

  assert.deepEqual(await findBound(), other)
})

test('of two data directories that start at once on a new database, one is bound', async () => {
  const { id: owner } = await user()
  await insertSandbox(db, owner, 'paused', { host_id: 'h1' })
  await sql`delete from data_directories`.execute(db)

  const results = await Promise.allSettled([first, other].map((one) => bindDataDirectory(db, one, false)))

  assert.deepEqual(results.map(({ status }) => status).sort(), ['fulfilled', 'rejected'])
})
