import assert from 'node:assert/strict'
import { test } from 'node:test'
import { sql } from 'kysely'
import { createTestDatabase } from '../testing/database.ts'
import { connectDatabase, type Database } from './connect.ts'
import { createStatementNames } from './prepare.ts'

const SILENT = { warn() {} }

const { url } = await createTestDatabase()
/** With one connection. */
const connect = () => connectDatabase(url, SILENT, { max: 1 })

const countPrepared = async ({ db }: Database, text: string): Promise<number> => {
  const { rows } = await sql<{ n: number }>`select count(*) as n from pg_prepared_statements
    where statement like ${text}`.execute(db)
  return rows[0]!.n
}

test('a statement that is sent often is prepared once, and gives the same rows', async (t) => {
  const database = connect()
  t.after(() => database.close())
  const add = async (n: number) =>
    (await sql<{ sum: number }>`select ${n}::integer + 1 as sum`.execute(database.db)).rows

  for (let n = 0; n < 9; n++) assert.deepEqual(await add(n), [{ sum: n + 1 }])
  assert.equal(await countPrepared(database, 'select $1::integer + 1%'), 0)
  for (let n = 9; n < 30; n++) assert.deepEqual(await add(n), [{ sum: n + 1 }])

  assert.equal(await countPrepared(database, 'select $1::integer + 1%'), 1)
})

test('statements without parameters are sent as they are', async (t) => {
  const database = connect()
  t.after(() => database.close())

  for (let n = 0; n < 30; n++) await sql`select 4711 as n`.execute(database.db)

  assert.equal(await countPrepared(database, 'select 4711%'), 0)
})

test('a prepared statement whose table gets a column fails once', async (t) => {
  const database = connect()
  t.after(() => database.close())
  await sql`create table grows (n integer)`.execute(database.db)
  const read = async () => (await sql`select * from grows where n = ${1}`.execute(database.db)).rows
  for (let n = 0; n < 20; n++) await read()
  await sql`alter table grows add column more text`.execute(database.db)
  await sql`insert into grows values (1, 'x')`.execute(database.db)

  await assert.rejects(read(), /cached plan must not change result type/)

  for (let n = 0; n < 20; n++) assert.deepEqual(await read(), [{ n: 1, more: 'x' }])
})

test('the number of names is bounded, however many texts are sent', () => {
  const names = createStatementNames()
  const given = new Set<string>()

  for (let text = 0; text < 2_000; text++) {
    for (let n = 0; n < 10; n++) given.add(names.find(`select ${text}`) ?? 'none')
  }

  assert.equal(given.size, 201)
  assert.equal(names.find('select 1'), [...given][2])
})
