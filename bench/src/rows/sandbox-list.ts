/** The first page of sandboxes must not take longer because a thousand times as many sandboxes exist. */
import { Pool } from 'undici'
import { compareTimes, type Timed } from '../compare-times.ts'
import { type ManySandboxes, manySandboxes, type Owner } from '../fixtures/many-sandboxes.ts'
import type { Measurement, Row, Run } from '../row.ts'

/** Until the statements are planned on every connection and the compiler has optimised the path. */
const WARM_UP_ROUNDS = 300

const NOT_COMPARABLE = {
  whyNot: 'its million sandboxes are written by SQL, which depends on the schema of the version',
}
const TARGET = { ratio: '<=', value: 2 } as const

export const listRow: Row = {
  name: 'list-1m',
  what: 'GET /v1/sandboxes of a user with 1,000,000 sandboxes, against one with 1,000',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measureList(run, '/v1/sandboxes', ({ sandboxes }) => sandboxes),
  comparison: NOT_COMPARABLE,
}

export const listByStatusRow: Row = {
  name: 'list-1m-status',
  what: 'GET /v1/sandboxes?status=running of the same two users; 6 % are running',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measureList(run, '/v1/sandboxes?status=running', ({ running }) => running),
  comparison: NOT_COMPARABLE,
}

async function measureList(run: Run, path: string, total: (owner: Owner) => number): Promise<Measurement> {
  const { baseUrl, large, small }: ManySandboxes = await run.open(manySandboxes)
  const pool = new Pool(baseUrl, { connections: 1, pipelining: 1 })
  try {
    const time = (owner: Owner) => timeList(pool, path, owner, total(owner), run.signal)
    run.report(`  warming up`)
    for (let round = 0; round < WARM_UP_ROUNDS; round++) {
      for (const owner of [large, small]) await time(owner)
    }
    return await compareTimes(
      run,
      () => time(large),
      () => time(small),
    )
  } finally {
    await pool.destroy()
  }
}

/** Times one request to its last byte. It is ok if it is the full first page with the right total. */
async function timeList(pool: Pool, path: string, owner: Owner, total: number, signal: AbortSignal): Promise<Timed> {
  const startedAt = performance.now()
  const response = await pool.request({ method: 'GET', path, headers: owner.headers, signal })
  const text = await response.body.text()
  const ms = performance.now() - startedAt
  if (response.statusCode !== 200) return { ms, ok: false }
  const { data } = JSON.parse(text)
  return { ms, ok: data.pagination.total === total && data.pagination.count === data.pagination.limit }
}
