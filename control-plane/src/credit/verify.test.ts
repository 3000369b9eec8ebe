import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { test } from 'node:test'
import { promisify } from 'node:util'
import { type RawBuilder, sql } from 'kysely'
import { createClockedApp } from '../testing/credit-clock.ts'
import { chargeUser } from './charge.ts'
import { listFaults, verifyCredit } from './verify.ts'

const { deps, user, create, advance } = await createClockedApp({ startWorker: false })
const ada = await user()
for (let n = 0; n < 3; n++) await create(ada, { shape: 's-0.25vcpu-512mb' })
for (const seconds of [10, 0.7, 100]) {
  await advance(seconds)
  await chargeUser(deps, ada.id)
}

class RolledBack extends Error {}

/** What the check finds when the statement is run behind the back of the triggers. */
async function checksThatFail(statement: RawBuilder<unknown>): Promise<string[]> {
  let found: string[] = []
  const tampered = deps.db.transaction().execute(async (tx) => {
    await sql`set local session_replication_role = replica`.execute(tx)
    await statement.execute(tx)
    found = (await listFaults(tx)).map(({ check }) => check)
    throw new RolledBack()
  })
  await assert.rejects(tampered, RolledBack)
  return [...new Set(found)]
}

const lastUsage = sql`(select max(id) from credit_entries where kind = 'usage')`

test('an untouched ledger has no faults', async () => {
  assert.deepEqual(await verifyCredit(deps.db), [])
})

test('every kind of tampering is found', async () => {
  const cases: [statement: RawBuilder<unknown>, check: string][] = [
    [sql`update users set credit_micro = credit_micro + 1`, 'the balance is the sum of the ledger'],
    [sql`delete from credit_entries where id = ${lastUsage}`, 'the periods of an interval cover what is charged'],
    [sql`delete from credit_entries where kind = 'grant'`, 'the number of entries is counted'],
    [sql`update credit_entries set balance_micro = 1 where kind = 'grant'`, 'each entry has the balance after it'],
    [
      sql`update credit_entries set amount_micro = amount_micro - 1 where id = ${lastUsage}`,
      'each entry has the balance after it',
    ],
    [sql`update users set credit_carry = credit_carry + 1`, 'charges are usage times price, without the carried part'],
    [
      sql`update credit_entries set disk_price = disk_price + 1 where id = ${lastUsage}`,
      'the units of an entry are its period times its prices',
    ],
    [sql`update usage_intervals set disk_mib = disk_mib + 1`, 'the units of an entry are its period times its prices'],
    [
      sql`update usage_intervals set charged_until = charged_until + interval '1 microsecond'`,
      'the periods of an interval cover what is charged',
    ],
    [
      sql`update credit_entries set period_start = period_start - interval '1 s', period_end = period_end - interval '1 s'
        where id = ${lastUsage}`,
      'the periods of an interval do not overlap',
    ],
    [
      sql`update credit_entries set period_start = period_start + interval '1 s', period_end = period_end + interval '1 s'
        where id = ${lastUsage}`,
      'the periods of an interval are inside it',
    ],
    [
      sql`update credit_entries set interval_id = (select max(id) from usage_intervals), period_start = period_start,
        sandbox_id = (select min(sandbox_id) from usage_intervals) where id = ${lastUsage}`,
      'an entry belongs to the user and the sandbox of its interval',
    ],
  ]
  for (const [statement, check] of cases) {
    const found = await checksThatFail(statement)
    assert.ok(found.includes(check), `${check}: found ${found.join('; ')}`)
  }
})

test('`warren admin credit verify` names the fault and exits with 1', async () => {
  const run = () =>
    promisify(execFile)(process.execPath, [new URL('../admin/main.ts', import.meta.url).pathname, 'credit', 'verify'], {
      env: { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: deps.database.url },
    })
  assert.equal((await run()).stdout, 'none\n')

  await deps.db.transaction().execute(async (tx) => {
    await sql`set local session_replication_role = replica`.execute(tx)
    await sql`update users set credit_micro = credit_micro + 1`.execute(tx)
  })

  await assert.rejects(run(), ({ code, stdout }: { code: number; stdout: string }) => {
    assert.equal(code, 1)
    assert.match(stdout, /the balance is the sum of the ledger/)
    return true
  })
})
