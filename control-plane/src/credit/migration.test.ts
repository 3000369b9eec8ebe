/** The upgrade of a database that has users, credit and usage, but was never charged (migration 0010). */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { sql } from 'kysely'
import { Migrator } from 'kysely/migration'
import { connectDatabase } from '../db/connect.ts'
import { migrate, readMigrations } from '../db/migrate.ts'
import { createTestDeps } from '../testing/app.ts'
import { createEmptyDatabaseUrl } from '../testing/database.ts'
import { chargeUser } from './charge.ts'
import { verifyCredit } from './verify.ts'

const database = connectDatabase(await createEmptyDatabaseUrl(), { warn() {} })
after(() => database.close())
const { db } = database

test('an upgrade keeps balances, explains them, and charges nothing of the past', async () => {
  const migrator = new Migrator({ db, provider: { getMigrations: readMigrations } })
  const { error } = await migrator.migrateTo('0009_plans')
  assert.equal(error, undefined)
  await sql`insert into users (id, name, plan, credit_micro) values
    ('usr_1', 'ada', 'pro', 748000000), ('usr_2', 'local', 'local', 500000000), ('usr_3', 'eve', 'pro', 7)`.execute(db)
  await sql`insert into sandboxes (id, user_id, name, status, shape, rootfs, region, vcpu, mem_mib, disk_mib,
      bandwidth_quota_bytes)
    select 'sb-' || n, user_id, 'box-' || n, status, 's-0.25vcpu-512mb', 'debian:13', 'eu', 1, 512, 10240, 0
    from (values (1, 'usr_1', 'running'), (2, 'usr_1', 'destroyed'), (3, 'usr_2', 'running'))
      given (n, user_id, status)`.execute(db)
  await sql`insert into credit_entries (user_id, amount_micro, reason) values ('usr_1', 500000000, 'new account'),
    ('usr_2', 500000000, 'new account'), ('usr_1', 250000000, 'invoice'), ('usr_1', -2000000, 'bandwidth of sb-1')`.execute(
    db,
  )
  await sql`insert into usage_intervals (sandbox_id, user_id, kind, shape, mem_mib, disk_mib, started_at, ended_at)
    select s.id, s.user_id, 'running', s.shape, s.mem_mib, s.disk_mib, now() - interval '9 days',
      case when s.status = 'destroyed' then now() - interval '8 days' end from sandboxes s`.execute(db)

  await migrate(database)

  const balances = await sql<{ credit_micro: number }>`select credit_micro from users order by id`.execute(db)
  assert.deepEqual(
    balances.rows.map((row) => row.credit_micro),
    [748_000_000, 500_000_000, 7],
  )
  const entries = await db
    .selectFrom('credit_entries')
    .selectAll()
    .where('user_id', '=', 'usr_1')
    .orderBy('id')
    .execute()
  assert.deepEqual(
    entries.map(({ kind, balance_micro, sandbox_id }) => [kind, balance_micro, sandbox_id]),
    [
      ['grant', 500_000_000, null],
      ['top_up', 750_000_000, null],
      ['bandwidth', 748_000_000, 'sb-1'],
    ],
  )
  assert.deepEqual(await verifyCredit(db), [])

  await chargeUser(createTestDeps(database), 'usr_1')
  const { credit_micro } = await db.selectFrom('users').selectAll().where('id', '=', 'usr_1').executeTakeFirstOrThrow()
  assert.ok(748_000_000 - credit_micro < 60 * 456, `${748_000_000 - credit_micro} for the time since the upgrade`)
  assert.deepEqual(await verifyCredit(db), [])
})
