/**
 * The money against any order of events: payments by hash and by authorization, deployments, minutes of usage, chains that
 * drop blocks, and database connections that are killed in the middle, several at once and on a real database.
 *
 * After every round:
 *
 *   - The balance of each wallet is the sum of its ledger.
 *   - Every payment that counts has exactly one more entry of its amount than reversals, and every dropped one as many.
 *     No money is taken without credit, and none is credited twice.
 *   - A settled authorization has its payment.
 *   - A wallet that never paid has no project.
 *   - Usage never exceeds what was paid: a pool is below zero only after a payment was dropped.
 */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { isDatabaseUnreachable } from '@warren/kit/postgres/connection'
import fc from 'fast-check'
import { CHAINS } from '../chains/table.ts'
import { connectDatabase } from '../db/connect.ts'
import { lockProject } from '../deployments/work.ts'
import { GatewayError } from '../http/errors.ts'
import { accept } from '../projects/deploy.ts'
import { creditSettlement } from '../settlements/reconcile.ts'
import { createTestDeps } from '../testing/app.ts'
import { createTestDatabase } from '../testing/database.ts'
import type { ParsedBody } from '../uploads/parse-body.ts'
import { parseSettings } from '../uploads/settings.ts'
import { meterProjects } from './meter.ts'
import { takeBack } from './recheck.ts'

const RUNS = Number(process.env.WARREN_PROPERTY_RUNS ?? 25)
const WALLETS = 2
const HASHES = 4
const NAMES = 3

const database = await createTestDatabase()
let nowMs = Date.now()
const limits = { projectsMax: 1000, deploysPerDay: 100_000 }
const deps = await createTestDeps(database, { config: limits, now: () => new Date(nowMs) })
/** A minute costs about half a dollar, so that pools run empty. */
const dear = { ...deps, config: { ...deps.config, monthlyRateMicroUsd: 20_000_000_000 } }

type Step =
  | { kind: 'deploy'; wallet: number; name: number; months: number; share: boolean }
  | { kind: 'pay'; wallet: number; name: number; months: number; hash: number; amount: number }
  /** A signed authorization, credited with the request or later by the background. */
  | { kind: 'authorize'; wallet: number; name: number; months: number; hash: number; amount: number; later: boolean }
  | { kind: 'drop'; hash: number }
  | { kind: 'serve' }
  | { kind: 'minute' }
  | { kind: 'kill'; after: number }

const wallet = fc.nat(WALLETS - 1)
const name = fc.nat(NAMES - 1)
const months = fc.integer({ min: 1, max: 2 })
const step: fc.Arbitrary<Step> = fc.oneof(
  fc.record({ kind: fc.constant('deploy' as const), wallet, name, months, share: fc.boolean() }),
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('pay' as const),
      wallet,
      name,
      months,
      hash: fc.nat(HASHES - 1),
      amount: fc.constantFrom(1, 200_000, 500_000, 3_000_000),
    }),
  },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('authorize' as const),
      wallet,
      name,
      months,
      hash: fc.nat(HASHES - 1),
      amount: fc.constantFrom(500_000, 1_000_000),
      later: fc.boolean(),
    }),
  },
  fc.record({ kind: fc.constant('drop' as const), hash: fc.nat(HASHES - 1) }),
  fc.constant({ kind: 'serve' as const }),
  fc.constant({ kind: 'minute' as const }),
  fc.record({ kind: fc.constant('kill' as const), after: fc.nat(8) }),
)

let run = 0
const addressOf = (one: number): string => `0x${run.toString(16).padStart(38, '0')}${one.toString(16).padStart(2, '0')}`
const hashOf = (one: number) => `0x${run.toString(16).padStart(60, '0')}${one.toString(16).padStart(4, '0')}` as const
/** A hash belongs to one wallet and has one amount, as on a chain. */
type Facts = Map<number, { wallet: number; amount: number }>

function bodyOf(one: number, monthCount: number): ParsedBody {
  const { settings, secrets } = parseSettings(undefined)
  return {
    uniqueName: `run-${run}-name-${one}`,
    displayName: 'x',
    description: null,
    months: monthCount,
    settings,
    secrets,
    bodyDigest: `${run} ${one} ${monthCount} ${nowMs}`,
    archive: new Uint8Array(1),
    uploadDigest: 'aa'.repeat(32),
    warnings: [],
  }
}

function paymentOf(
  { wallet: owner, amount, hash: one }: { wallet: number; amount: number; hash: number },
  facts: Facts,
) {
  const fact = facts.get(one) ?? { wallet: owner, amount }
  facts.set(one, fact)
  const payment = {
    hash: hashOf(one),
    chain: CHAINS.base,
    token: CHAINS.base.tokens.usdc,
    amountMicro: BigInt(fact.amount),
    blockNumber: 1n,
    blockHash: `0x${'b'.repeat(64)}` as const,
  }
  return { payer: addressOf(fact.wallet), payment }
}

/** The row that is written before an authorization is sent. Its nonce stands for the transaction. */
async function intendSettlement(payer: string, hash: string, nameOf: number, monthCount: number) {
  await deps.db
    .insertInto('gateway.settlements')
    .values({
      chain: 'base',
      token: 'usdc',
      payer,
      nonce: hash,
      amount_raw: 1n,
      valid_before: 1n,
      transport: 'x402',
      unique_name: bodyOf(nameOf, monthCount).uniqueName,
      months: monthCount,
      from_block: 1n,
      calldata: null,
      settler: null,
      account_nonce: null,
      raw_transaction: null,
      sent_at: null,
      leased_until: new Date(),
    })
    .onConflict((conflict) => conflict.doNothing())
    .execute()
  return deps.db.selectFrom('gateway.settlements').selectAll().where('nonce', '=', hash).executeTakeFirstOrThrow()
}

/** Every outcome that a client can see is fine here, and so is a lost connection: the invariants are about the rows. */
async function perform(one: Step, facts: Facts): Promise<void> {
  const headers = { hash: undefined, chain: CHAINS.base, token: CHAINS.base.tokens.usdc, useExistingCredits: false }
  switch (one.kind) {
    case 'deploy': {
      const asked = { ...headers, useExistingCredits: one.share }
      await accept(deps, addressOf(one.wallet), asked, bodyOf(one.name, one.months), {})
      return
    }
    case 'pay': {
      const { payer, payment } = paymentOf(one, facts)
      await accept(deps, payer, { ...headers, hash: payment.hash }, bodyOf(one.name, one.months), { payment })
      return
    }
    case 'authorize': {
      const { payer, payment } = paymentOf(one, facts)
      const row = await intendSettlement(payer, payment.hash, one.name, one.months)
      if (one.later) return creditSettlement(deps, row, payment)
      const settlement = { id: row.id, transport: row.transport, chain: payment.chain, payer }
      await accept(deps, payer, headers, bodyOf(one.name, one.months), { payment, settlement })
      return
    }
    case 'drop': {
      const row = await deps.db
        .selectFrom('gateway.payments')
        .selectAll()
        .where('hash', '=', hashOf(one.hash))
        .executeTakeFirst()
      if (row) await takeBack(deps, row)
      return
    }
    case 'serve':
      return serveQueued()
    case 'minute':
      nowMs += 60_000
      await meterProjects.run(dear)
      return
    case 'kill':
      for (let i = 0; i < one.after; i++) await new Promise((resolve) => setImmediate(resolve))
      kills++
      await killer.pool.query(
        `select pg_terminate_backend(pid) from pg_stat_activity
         where datname = current_database() and pid <> pg_backend_pid() order by random() limit 1`,
      )
      return
  }
}

/** What the background does, without sandboxes. It locks as everywhere: one project, then its deployments. */
async function serveQueued(): Promise<void> {
  const queued = await deps.db
    .selectFrom('gateway.deployments')
    .select('project_id')
    .distinct()
    .where('status', '=', 'queued')
    .execute()
  for (const { project_id: id } of queued) {
    await deps.db.transaction().execute(async (tx) => {
      await lockProject(tx, id)
      const isQueued =
        (await tx
          .updateTable('gateway.deployments')
          .set({ status: 'active' })
          .where('project_id', '=', id)
          .where('status', '=', 'queued')
          .returning('id')
          .executeTakeFirst()) !== undefined
      if (!isQueued) return
      await tx
        .updateTable('gateway.projects')
        .set({ status: 'active', url: 'https://x', metered_until: new Date(nowMs) })
        .where('id', '=', id)
        .where('status', '=', 'queued')
        .execute()
    })
  }
}

/** Its own pool, which it spares. */
const killer = connectDatabase(database.url, { warn() {} }, { max: 1 })

const isExpected = (error: unknown): boolean => error instanceof GatewayError || isDatabaseUnreachable(error)

async function checkInvariants(facts: Facts): Promise<void> {
  const { rows: wallets } = await killer.pool.query(
    `select address, balance_micro as balance,
       (select coalesce(sum(amount_micro), 0)::bigint from gateway.ledger where wallet = address) as sum,
       (select count(*)::int from gateway.payments where wallet = address and status = 'orphaned') as orphaned
     from gateway.wallets`,
  )
  for (const { address, balance, sum, orphaned } of wallets) {
    assert.equal(balance, sum, `balance of ${address}`)
    const wasDropped = orphaned > 0 || dropped.has(address)
    if (orphaned > 0) dropped.add(address)
    assert.ok(balance >= 0n || wasDropped, `${address} is in debt without a dropped payment`)
  }
  const { rows: payments } = await killer.pool.query(
    `select hash, status, amount_micro as amount, wallet,
       (select coalesce(sum(amount_micro), 0)::bigint from gateway.ledger where payment_hash = hash) as credited
     from gateway.payments`,
  )
  for (const { hash, status, amount, credited } of payments) {
    assert.equal(credited, status === 'orphaned' ? 0n : amount, `credit of ${hash}`)
  }
  for (const [one, { wallet: owner, amount }] of facts) {
    const row = payments.find(({ hash }: { hash: string }) => hash === hashOf(one))
    if (row) assert.deepEqual([row.wallet, row.amount], [addressOf(owner), BigInt(amount)])
  }
  const { rows: unpaid } = await killer.pool.query(
    `select nonce from gateway.settlements s where status = 'settled' and not exists (select from gateway.payments where hash = s.nonce)`,
  )
  assert.deepEqual(unpaid, [], 'settled without a payment')
  const { rows: gifts } = await killer.pool.query(
    `select id from gateway.projects p where not exists (select from gateway.ledger l where l.wallet = p.wallet and l.amount_micro > 0)`,
  )
  assert.deepEqual(gifts, [], 'projects of wallets that never paid')
  const { rows: lost } = await killer.pool.query(
    `select p.id from gateway.projects p where not exists (select from gateway.deployments d where d.project_id = p.id)`,
  )
  assert.deepEqual(lost, [], 'projects without a deployment')
}
const dropped = new Set<string>()
let kills = 0

test('any interleaving keeps the balance equal to the ledger, and grants nothing that was not paid', async () => {
  try {
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(step, { minLength: 1, maxLength: 5 }), { minLength: 1, maxLength: 8 }),
        async (rounds) => {
          run++
          const facts: Facts = new Map()
          for (const round of rounds) {
            const outcomes = await Promise.allSettled(round.map((one) => perform(one, facts)))
            for (const outcome of outcomes) {
              if (outcome.status === 'rejected') assert.ok(isExpected(outcome.reason), String(outcome.reason?.stack))
            }
            await checkInvariants(facts)
          }
        },
      ),
      { numRuns: RUNS },
    )
    const { rows } = await killer.pool.query(
      `select (select count(*)::int from gateway.deployments) as deployments,
         (select count(*)::int from gateway.ledger where kind = 'usage') as charges,
         (select count(*)::int from gateway.settlements where status = 'settled') as settlements,
         (select count(*)::int from gateway.ledger where kind = 'reversal') as reversals`,
    )
    const { deployments, charges, settlements, reversals } = rows[0]
    assert.ok(Math.min(deployments, charges, settlements, reversals, kills) > 0, JSON.stringify({ ...rows[0], kills }))
  } finally {
    await killer.close()
  }
})

test('entries of the ledger cannot be changed or deleted', async () => {
  for (const text of [
    'update gateway.ledger set amount_micro = 1',
    'delete from gateway.ledger',
    'truncate gateway.ledger',
  ]) {
    await assert.rejects(database.pool.query(text), /never changed or deleted/)
  }
})
