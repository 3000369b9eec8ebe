import assert from 'node:assert/strict'
import { test } from 'node:test'
import fc from 'fast-check'
import { decide, type Situation } from './decide.ts'
import { calculateUsage } from './meter.ts'
import { priceMicro, toMicro, toTokenRaw } from './money.ts'

const PRICE = 500_000n
const base: Situation = {
  poolMicro: 0n,
  otherActive: 0,
  isRedeploy: false,
  months: 1,
  useExistingCredits: false,
  priceMicro: PRICE,
  quotes: [],
  receivedMicro: 0n,
  meteredMicro: 100n,
  paidMicro: undefined,
}
const outcome = (more: Partial<Situation>): string => {
  const decision = decide({ ...base, ...more })
  if (decision.kind === 'granted') return decision.sharesCredit ? 'granted, shared' : 'granted'
  return `asked ${decision.missingMicro}${decision.couldUseCredit ? ' with a hint' : ''}`
}

test('the matrix of credit, active projects and X-Use-Existing-Credits', () => {
  const rows: [Partial<Situation>, string][] = [
    [{ poolMicro: PRICE }, 'granted'],
    [{ poolMicro: PRICE, useExistingCredits: true }, 'granted'],
    [{ poolMicro: PRICE, otherActive: 1, useExistingCredits: true }, 'granted, shared'],
    [{ poolMicro: PRICE, otherActive: 1 }, 'asked 500000 with a hint'],
    [{ poolMicro: PRICE - 1n }, 'asked 1'],
    [{ poolMicro: PRICE - 1n, otherActive: 1 }, 'asked 500000'],
    [{ poolMicro: PRICE - 1n, otherActive: 1, useExistingCredits: true }, 'asked 1'],
    [{}, 'asked 500000'],
    [{ useExistingCredits: true }, 'asked 500000'],
  ]
  for (const [situation, expected] of rows)
    assert.equal(outcome(situation), expected, String(Object.entries(situation)))
})

test('a redeploy is free for one month while there is credit, and priced otherwise', () => {
  const redeploy = { isRedeploy: true, otherActive: 3 }

  assert.equal(outcome({ ...redeploy, poolMicro: 1n }), 'granted')
  assert.equal(outcome({ ...redeploy, poolMicro: 1n, paidMicro: 1n }), 'granted', 'a payment is a top-up')
  assert.equal(outcome({ ...redeploy, poolMicro: 0n }), 'asked 500000')
  assert.equal(outcome({ ...redeploy, poolMicro: 1n, months: 2, priceMicro: 2n * PRICE }), 'asked 1000000')
  assert.equal(outcome({ ...redeploy, poolMicro: -1n }), 'asked 500001')
})

test('a payment decides whatever the header says', () => {
  const shared = { poolMicro: 10n * PRICE, otherActive: 1, useExistingCredits: true }

  assert.equal(outcome({ ...shared, paidMicro: PRICE }), 'granted')
  assert.equal(outcome({ ...shared, paidMicro: PRICE - 1n }), 'asked 1 with a hint')
  assert.equal(outcome({ ...shared, paidMicro: PRICE - 1n, receivedMicro: 1n }), 'granted')
})

test('a payment of what was asked is enough, although projects have used some of the pool since', () => {
  const quotes = [{ priceMicro: PRICE, countsPool: true }]
  const shared = { otherActive: 1, useExistingCredits: true, quotes }

  assert.equal(outcome({ ...shared, poolMicro: 99_900n, paidMicro: 400_000n }), 'granted')
  assert.equal(outcome({ ...shared, poolMicro: 99_899n, paidMicro: 400_000n }), 'asked 101')
  assert.equal(outcome({ ...shared, poolMicro: PRICE - 50n }), 'asked 50', 'a quote alone is no credit')
  assert.equal(outcome({ ...shared, poolMicro: PRICE - 50n, paidMicro: 0n }), 'asked 50', 'nor is a refused payment')
  const pool = { otherActive: 1, quotes: [{ priceMicro: PRICE, countsPool: false }] }
  assert.equal(outcome({ ...pool, paidMicro: PRICE - 50n }), 'asked 50')
})

test('the lowest quote is honoured, and one that counted the pool holds for the payment that follows', () => {
  const raised = { priceMicro: 2n * PRICE, quotes: [{ priceMicro: PRICE, countsPool: false }] }
  assert.equal(outcome({ ...raised, otherActive: 1, paidMicro: PRICE }), 'granted')
  assert.equal(outcome({ ...raised, otherActive: 1 }), 'asked 500000')
  assert.equal(
    outcome({ quotes: [{ priceMicro: 9n * PRICE, countsPool: true }] }),
    'asked 500000',
    'never a higher one',
  )

  const counted = { otherActive: 1, poolMicro: 300_000n, quotes: [{ priceMicro: PRICE, countsPool: true }] }
  assert.equal(outcome({ ...counted, paidMicro: 200_000n }), 'granted')
  assert.equal(
    outcome({ ...counted, poolMicro: PRICE }),
    'asked 500000 with a hint',
    'without a payment it is no opt-in',
  )
})

test('a debt is paid first', () => {
  assert.equal(outcome({ poolMicro: -200_000n }), 'asked 700000')
  assert.equal(outcome({ poolMicro: -200_000n, otherActive: 2, receivedMicro: PRICE, paidMicro: 699_999n }), 'asked 1')
})

test('no deployment is granted unless pool and payment together are above zero', () => {
  const micro = fc.bigInt({ min: -2_000_000n, max: 2_000_000n })
  const positive = fc.bigInt({ min: 1n, max: 2_000_000n })
  const situation = fc.record({
    poolMicro: micro,
    otherActive: fc.nat(3),
    isRedeploy: fc.boolean(),
    months: fc.integer({ min: 1, max: 3 }),
    useExistingCredits: fc.boolean(),
    priceMicro: positive,
    quotes: fc.array(fc.record({ priceMicro: positive, countsPool: fc.boolean() }), { maxLength: 3 }),
    receivedMicro: fc.bigInt({ min: 0n, max: 2_000_000n }),
    meteredMicro: fc.bigInt({ min: 0n, max: 5_000n }),
    paidMicro: fc.option(fc.bigInt({ min: 0n, max: 2_000_000n }), { nil: undefined }),
  })
  fc.assert(
    fc.property(situation, (one) => {
      const decision = decide(one)
      const total = one.poolMicro + (one.paidMicro ?? 0n)
      if (decision.kind === 'granted') assert.ok(total > 0n)
      else assert.ok(decision.missingMicro > 0n)
    }),
    { numRuns: 5_000 },
  )
})

test('prices have a floor, and amounts of tokens are rounded up', () => {
  assert.equal(priceMicro({ monthlyRateMicroUsd: 0 }, 1), 500_000n)
  assert.equal(priceMicro({ monthlyRateMicroUsd: 700_000 }, 12), 8_400_000n)
  const token = (decimals: number) => ({ name: 'usdc' as const, symbol: 'X', address: '0x0' as const, decimals })
  assert.equal(toTokenRaw(500_001n, token(6)), 500_001n)
  assert.equal(toTokenRaw(500_001n, token(2)), 51n)
  assert.equal(toTokenRaw(1n, token(18)), 1_000_000_000_000n)
  assert.equal(toMicro(999_999_999_999n, token(18)), 0n)
})

test('a month of minutes costs exactly the rate, however it is cut', () => {
  const rate = 500_000n
  const startMs = Date.UTC(2026, 0, 1)
  let [total, remainder, atMs] = [0n, 0n, startMs]
  const endMs = startMs + 730 * 3_600_000
  while (atMs < endMs) {
    const nextMs = Math.min(atMs + 60_000 + ((atMs / 1000) % 7) * 1_000, endMs)
    const usage = calculateUsage({ metered_until: new Date(atMs), meter_remainder: remainder }, rate, new Date(nextMs))
    total += usage.due
    ;[remainder, atMs] = [usage.remainder, nextMs]
  }
  assert.equal(total, rate)
  assert.equal(remainder, 0n)
})
