/** The metrics of an account must not take longer because it had a thousand times as many sandboxes before. */
import { Pool } from 'undici'
import { compareTimes, type Timed } from '../compare-times.ts'
import type { Account } from '../fixtures/accounts.ts'
import { type OldAccounts, oldAccounts } from '../fixtures/old-accounts.ts'
import type { Measurement, Row, Run } from '../row.ts'

/** Until the compiler has optimised the path. */
const WARM_UP_ROUNDS = 30

const NOT_COMPARABLE = {
  whyNot: 'its million sandboxes are written by SQL, which depends on the schema of the version',
}
const TARGET = { ratio: '<=', value: 2 } as const

type Counts = { spawned: number; destroyed: number }

export const accountMetricsRow: Row = {
  name: 'account-metrics',
  what: 'GET /v1/metrics of an account with 1,000,000 sandboxes, 1,000 of them in the window, against one with only these 1,000',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measure(run, '/v1/metrics', ({ window }) => window),
  comparison: NOT_COMPARABLE,
}

export const accountSeriesRow: Row = {
  name: 'account-series',
  what: 'GET /v1/metrics/timeseries of the same two accounts and window',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measure(run, '/v1/metrics/timeseries', ({ buckets }) => sumOf(buckets)),
  comparison: NOT_COMPARABLE,
}

const sumOf = (buckets: Counts[]): Counts => ({
  spawned: buckets.reduce((sum, one) => sum + one.spawned, 0),
  destroyed: buckets.reduce((sum, one) => sum + one.destroyed, 0),
})

// biome-ignore lint/suspicious/noExplicitAny: each row knows the response of its path.
async function measure(run: Run, route: string, countsOf: (data: any) => Counts): Promise<Measurement> {
  const { baseUrl, old, young, window }: OldAccounts = await run.open(oldAccounts)
  const path = `${route}?from=${window.from.toISOString()}&to=${window.to.toISOString()}`
  const pool = new Pool(baseUrl, { connections: 1, pipelining: 1 })
  /** Times one request to its last byte. It is ok if it counts what was written. */
  const time = async ({ headers }: Account): Promise<Timed> => {
    const startedAt = performance.now()
    const response = await pool.request({ method: 'GET', path, headers, signal: run.signal })
    const text = await response.body.text()
    const ms = performance.now() - startedAt
    if (response.statusCode !== 200) return { ms, ok: false }
    const { spawned, destroyed } = countsOf(JSON.parse(text).data)
    return { ms, ok: spawned === window.spawned && destroyed === window.destroyed }
  }
  try {
    run.report(`  warming up`)
    for (let round = 0; round < WARM_UP_ROUNDS; round++) {
      for (const account of [old, young]) await time(account)
    }
    return await compareTimes(
      run,
      () => time(old),
      () => time(young),
    )
  } finally {
    await pool.destroy()
  }
}
