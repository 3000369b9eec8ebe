import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { sql } from 'kysely'
import { JOBS } from '../jobs/registry.ts'
import { startWorker } from '../jobs/worker.ts'
import type { TestUser } from '../testing/app.ts'
import { costOf, createClockedApp } from '../testing/credit-clock.ts'
import { setBalance } from '../testing/set-balance.ts'
import { addCredit } from './add.ts'
import { chargeUsage, chargeUser } from './charge.ts'
import { verifyCredit } from './verify.ts'

const clocked = await createClockedApp({ host: { memMib: 10_000_000 }, startWorker: false })
const { deps, host, user, create, send, get, advance } = clocked
const worker = await startWorker(deps, { jobs: JOBS, sweeps: [] })
after(() => worker.stop())

const SHAPE = 's-1vcpu-1gb'
const DISK_MIB = 10_240
const second = { kind: 'running', shape: SHAPE, diskMib: DISK_MIB, us: 1_000_000n } as const
const START = 500_000_000
/** A whole day takes minutes to charge. */
const SECONDS = process.env.WARREN_TEST_SOAK ? 86_400 : 1_000

const newSandbox = async (who: TestUser, body: object = {}): Promise<string> =>
  (await create(who, { shape: SHAPE, ...body })).body.data.id
const creditOf = async (who: TestUser) => (await get('/v1/credit', who.key)).body.data
const balanceOf = async (who: TestUser): Promise<number> => (await creditOf(who)).balance_micro
const ledgerOf = async (who: TestUser, query = '') => (await get(`/v1/credit/ledger${query}`, who.key)).body.data
const statusOf = async (who: TestUser, id: string) => (await get(`/v1/sandboxes/${id}`, who.key)).body.data
const waitFor = (who: TestUser, id: string, status: string) =>
  until(async () => (await statusOf(who, id)).status === status, `${id} is ${status}`)
const move = async (who: TestUser, id: string, verb: 'pause' | 'resume') => {
  assert.equal((await send('POST', `/v1/sandboxes/${id}/${verb}`, who)).status, 202)
  await waitFor(who, id, verb === 'pause' ? 'paused' : 'running')
}

test('an hour of a running sandbox costs its vCPU, memory and disk, to the micro-credit', async () => {
  const ada = await user()
  await newSandbox(ada)

  await advance(3600)
  await chargeUser(deps, ada.id)

  // 3600 * (1004.55 + 321.95 + 10 * 4.4) micro-credits
  assert.equal(START - (await balanceOf(ada)), 4_933_800)
})

test('the sum does not depend on how often it is charged: seconds, minutes or once, exactly', async () => {
  const [often, once] = [await user(), await user()]
  // 0.25 * 1004.55 + 0.5 * 321.95 + 10 * 4.4 micro-credits per second: each charge has a fraction.
  const shape = 's-0.25vcpu-512mb'
  for (const who of [often, once]) await newSandbox(who, { shape })

  for (let n = 0; n < SECONDS; n++) {
    await advance(1)
    await chargeUser(deps, often.id)
  }
  for (let n = 0; n < 100; n++) {
    await advance(60.007)
    await chargeUser(deps, often.id)
  }
  await chargeUser(deps, once.id)

  const us = BigInt(SECONDS) * 1_000_000n + 6_000_700_000n
  assert.equal(START - (await balanceOf(once)), costOf([{ kind: 'running', shape, diskMib: DISK_MIB, us }]))
  assert.equal(await balanceOf(often), await balanceOf(once))
  assert.equal((await ledgerOf(often)).pagination.total, 1 + SECONDS + 100)
})

test('a paused sandbox pays memory and disk, one in error its disk, a deleted one nothing', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await advance(10)
  await move(ada, id, 'pause')
  await advance(1000)
  await chargeUser(deps, ada.id)
  const paused = START - (await balanceOf(ada))
  assert.equal(
    paused,
    costOf([
      { ...second, us: 10_000_000n },
      { ...second, kind: 'paused', us: 1_000_000_000n },
    ]),
  )

  host.hooks = {
    beforeResume: () => {
      throw new Error('no resume today')
    },
  }
  await send('POST', `/v1/sandboxes/${id}/resume`, ada)
  await waitFor(ada, id, 'error')
  host.hooks = {}
  await advance(500)
  await send('DELETE', `/v1/sandboxes/${id}`, ada)
  await waitFor(ada, id, 'destroyed')
  await advance(10_000)
  await chargeUser(deps, ada.id)

  const all = costOf([
    { ...second, us: 10_000_000n },
    { ...second, kind: 'paused', us: 1_000_000_000n },
    { ...second, kind: 'error', us: 500_000_000n },
  ])
  assert.equal(START - (await balanceOf(ada)), all)
})

test('a failed create costs nothing', async () => {
  const ada = await user()
  host.hooks = {
    beforeCreate: () => {
      throw new Error('no VM today')
    },
  }
  assert.equal((await create(ada)).status, 502)
  host.hooks = {}
  await advance(3600)
  await chargeUser(deps, ada.id)

  assert.deepEqual([await balanceOf(ada), (await ledgerOf(ada)).pagination.total], [START, 1])
})

test('a change of the disk splits the interval: each size is charged for its time', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await advance(100)
  await sql`update sandboxes set disk_mib = 20480 where id = ${id}`.execute(deps.db)
  await advance(200)
  await chargeUser(deps, ada.id)

  const expected = costOf([
    { ...second, us: 100_000_000n },
    { ...second, diskMib: 20_480, us: 200_000_000n },
  ])
  assert.equal(START - (await balanceOf(ada)), expected)
  const { data } = await ledgerOf(ada, `?sandbox_id=${id}`)
  assert.deepEqual(
    data.map((entry: { usage: { disk_mib: number; seconds: number } }) => [entry.usage.disk_mib, entry.usage.seconds]),
    [
      [20_480, 200],
      [10_240, 100],
    ],
  )
})

test('the local plan is never charged, and a change of plan applies from its moment', async () => {
  const ada = await user({ plan: 'local' })
  await newSandbox(ada)
  await advance(1000)
  await deps.db.updateTable('users').set({ plan: 'pro' }).where('id', '=', ada.id).execute()
  await advance(10)
  await deps.db.updateTable('users').set({ plan: 'enterprise' }).where('id', '=', ada.id).execute()
  await advance(10)
  await deps.db.updateTable('users').set({ plan: 'local' }).where('id', '=', ada.id).execute()
  await advance(1000)
  await chargeUser(deps, ada.id)

  const charged = { ...second, us: 20_000_000n }
  assert.equal(START - (await balanceOf(ada)), costOf([charged]))
  const { charged: isCharged, burn_micro_per_hour, runway_seconds } = await creditOf(ada)
  assert.deepEqual([isCharged, burn_micro_per_hour, runway_seconds], [false, 0, undefined])
})

test('the sweep charges each period once, also when several processes run it at the same time', async () => {
  const ada = await user()
  await newSandbox(ada)
  await advance(59)
  await chargeUsage.run(deps)
  assert.equal(await balanceOf(ada), START, 'not due yet')

  await advance(1)
  await Promise.all(Array.from({ length: 8 }, () => chargeUsage.run(deps)))

  assert.equal(START - (await balanceOf(ada)), costOf([{ ...second, us: 60_000_000n }]))
  assert.equal((await ledgerOf(ada)).pagination.total, 2)
})

test('without credit running sandboxes are paused with reason credit, gates are 402, and a top-up allows a resume', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await setBalance(deps.db, ada.id, 1000)
  await advance(60)
  await chargeUsage.run(deps)
  await waitFor(ada, id, 'paused')

  const debt = await balanceOf(ada)
  assert.equal(debt, 1000 - costOf([{ ...second, us: 60_000_000n }]))
  assert.equal((await statusOf(ada, id)).status_reason, 'credit: the account has no credit left')
  for (const [method, path, body] of [
    ['POST', '/v1/sandboxes', { shape: SHAPE }],
    ['POST', `/v1/sandboxes/${id}/resume`, undefined],
    ['POST', `/v1/sandboxes/${id}/fork`, {}],
    ['POST', '/v1/networks', { name: 'net' }],
  ] as const) {
    const { status, body: answer } = await send(method, path, ada, body)
    assert.deepEqual([status, answer.data.code], [402, 'insufficient_credit'], path)
  }

  // The debt is repaid first: credit that does not exceed it opens nothing.
  const topUp = (micro: number) =>
    deps.db.transaction().execute((tx) => addCredit(tx, ada.id, micro / 1e6, { kind: 'top_up', reason: 'invoice' }))
  await topUp(-debt)
  assert.deepEqual([await balanceOf(ada), (await send('POST', `/v1/sandboxes/${id}/resume`, ada)).status], [0, 402])
  await topUp(1)
  await move(ada, id, 'resume')
})

test('a paused sandbox without credit runs up a debt', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await move(ada, id, 'pause')
  await setBalance(deps.db, ada.id, 0)
  await advance(3600)
  await chargeUsage.run(deps)

  assert.equal(await balanceOf(ada), -costOf([{ ...second, kind: 'paused', us: 3_600_000_000n }]))
  assert.equal((await creditOf(ada)).runway_seconds, 0)
})

test('an operator can leave sandboxes without credit running', async () => {
  const ada = await user()
  const id = await newSandbox(ada)
  await setBalance(deps.db, ada.id, 1)
  await advance(60)
  await chargeUsage.run({ ...deps, config: { ...deps.config, creditPause: false } })

  assert.equal((await statusOf(ada, id)).status, 'running')
  assert.ok((await balanceOf(ada)) < 0)
})

test('the credit shows what is pending, the rate per hour and the runway', async () => {
  const ada = await user()
  await newSandbox(ada)
  await advance(30)

  const { as_of, ...credit } = await creditOf(ada)

  assert.match(as_of, /Z$/)
  assert.deepEqual(credit, {
    balance_micro: START,
    pending_micro: costOf([{ ...second, us: 30_000_000n }]),
    burn_micro_per_hour: 4_933_800,
    runway_seconds: Math.floor(START / 1370.5) - 30,
    charged: true,
    prices: { vcpu_second: '0.00100455', memory_gib_second: '0.00032195', disk_gib_second: '0.0000044' },
  })
})

test('the ledger explains every credit, is paginated, and shows only entries of the caller', async () => {
  const [ada, bob] = [await user(), await user()]
  const id = await newSandbox(ada)
  await advance(60)
  await chargeUser(deps, ada.id)
  await send('POST', `/v1/sandboxes/${id}/bandwidth/recharge`, ada, { add_bytes: 1 })

  const { data, pagination } = await ledgerOf(ada)

  assert.deepEqual(pagination, { total: 3, limit: 50, offset: 0, count: 3 })
  const [recharge, usage, grant] = data
  assert.deepEqual(
    [recharge.kind, recharge.amount_micro, recharge.sandbox_id, recharge.balance_micro],
    ['bandwidth', -1_000_000, id, START - 1_000_000 - 82_230],
  )
  assert.deepEqual(
    { ...usage.usage, from: '', to: '' },
    { status: 'running', from: '', to: '', seconds: 60, vcpu: 1, mem_mib: 1024, disk_mib: 10_240 },
  )
  assert.deepEqual([usage.amount_micro, usage.balance_micro], [-82_230, START - 82_230])
  assert.deepEqual([grant.kind, grant.amount_micro, grant.balance_micro], ['grant', START, START])

  assert.deepEqual((await ledgerOf(ada, '?limit=1&offset=1')).data, [usage])
  assert.equal((await ledgerOf(ada, `?sandbox_id=${id}`)).pagination.total, 2)
  assert.deepEqual((await ledgerOf(bob, `?sandbox_id=${id}`)).data, [])
  assert.equal((await ledgerOf(ada, '?sandbox_id=')).pagination.total, 3)
})

test('a top-up with a reference is recorded once', async () => {
  const ada = await user()
  const topUp = (credits = 100) =>
    deps.db
      .transaction()
      .execute((tx) => addCredit(tx, ada.id, credits, { kind: 'top_up', reason: 'invoice', reference: 'inv-7' }))

  await Promise.all([topUp(), topUp(), topUp()])

  assert.equal(await balanceOf(ada), START + 100_000_000)
  await assert.rejects(topUp(101), /reference inv-7 is already recorded with 100 credits/)
})

test('the database refuses to change the ledger, and a balance without an entry', async () => {
  const ada = await user()
  for (const statement of [
    sql`update credit_entries set amount_micro = 1 where user_id = ${ada.id}`,
    sql`delete from credit_entries where user_id = ${ada.id}`,
    sql`truncate credit_entries cascade`,
    sql`update users set credit_micro = 1 where id = ${ada.id}`,
    sql`insert into users (id, name, plan, credit_micro) values ('usr_rich', 'rich', 'pro', 5)`,
  ]) {
    await assert.rejects(statement.execute(deps.db), /append-only|is the sum of credit_entries/)
  }
})

test('charges and top-ups do not clear cached credentials; a change of the plan does', async () => {
  const ada = await user()
  await newSandbox(ada)
  const heard: string[] = []
  const client = await deps.database.pool.connect()
  client.on('notification', ({ channel }) => heard.push(channel))
  await client.query('listen credentials_changed; listen end_of_test')

  await advance(60)
  await chargeUser(deps, ada.id)
  await setBalance(deps.db, ada.id, 5)
  await sql`notify end_of_test`.execute(deps.db)
  await until(() => heard.includes('end_of_test'))
  assert.deepEqual(heard, ['end_of_test'])

  await deps.db.updateTable('users').set({ plan: 'free' }).where('id', '=', ada.id).execute()
  await until(() => heard.includes('credentials_changed'))
  await client.query('unlisten *')
  client.release()
})

test('low credit is noticed once, and again after it was above the limit', async () => {
  const ada = await user()
  await newSandbox(ada)
  const lowAt = async () =>
    (
      await deps.db.selectFrom('users').select('credit_low_at').where('id', '=', ada.id).executeTakeFirstOrThrow()
    ).credit_low_at?.getTime()
  const pass = async () => {
    await advance(60)
    await chargeUser(deps, ada.id)
    return lowAt()
  }
  assert.equal(await pass(), undefined)

  await setBalance(deps.db, ada.id, 50_000_000)
  const first = await pass()
  assert.ok(first)
  assert.equal(await pass(), first)

  await setBalance(deps.db, ada.id, 60_000_000)
  assert.equal(await pass(), undefined)
  await setBalance(deps.db, ada.id, 40_000_000)
  const second = (await pass())!
  assert.ok(second > first)
  assert.equal(await pass(), second)

  // Above it between two charges only.
  await setBalance(deps.db, ada.id, 50_000_001)
  assert.ok((await pass())! > second)
})

test('a balance that could not be read exactly is refused', async () => {
  const ada = await user()
  const topUp = (credits: number) =>
    deps.db.transaction().execute((tx) => addCredit(tx, ada.id, credits, { kind: 'top_up', reason: 'invoice' }))

  for (let n = 0; n < 9; n++) await topUp(1e9)
  await assert.rejects(topUp(1e9), /credit_is_exact/)

  assert.equal(await balanceOf(ada), START + 9e15)
})

test('verify finds nothing after all of this', async () => {
  await chargeUsage.run(deps)

  assert.deepEqual(await verifyCredit(deps.db), [])
})
