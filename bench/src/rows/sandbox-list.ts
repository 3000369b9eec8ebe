/** The first page of sandboxes must not take longer because a thousand times as many sandboxes exist. */
import { Pool } from 'undici'
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import { type ManySandboxes, manySandboxes, type Owner } from '../fixtures/many-sandboxes.ts'
import type { Comparison, Measurement, Row, Run } from '../row.ts'
import { SMALL } from '../vm/instance.ts'

/** Until the statements are planned on every connection and the compiler has optimised the path. */
const WARM_UP_ROUNDS = 300

/** A million can be written by SQL only, which depends on the schema of a version, so versions are compared with few. */
const COMPARED_SANDBOXES = 10
/** In one turn. */
const COMPARED_CALLS = 20

const TARGET = { ratio: '<=', value: 2 } as const

export const listRow: Row = {
  name: 'list-1m',
  what: 'GET /v1/sandboxes of a user with 1,000,000 sandboxes, against one with 1,000',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measureList(run, '/v1/sandboxes', ({ sandboxes }) => sandboxes),
  comparison: compareLists('/v1/sandboxes'),
}

export const listByStatusRow: Row = {
  name: 'list-1m-status',
  what: 'GET /v1/sandboxes?status=running of the same two users; 6 % are running',
  unit: 'ms',
  baseline: 'the same with 1,000 rows',
  target: TARGET,
  measure: (run) => measureList(run, '/v1/sandboxes?status=running', ({ running }) => running),
  comparison: compareLists('/v1/sandboxes?status=running'),
}

async function measureList(run: Run, path: string, total: (owner: Owner) => number): Promise<Measurement> {
  const { baseUrl, large, small }: ManySandboxes = await run.open(manySandboxes)
  const pool = new Pool(baseUrl, { connections: 1, pipelining: 1 })
  try {
    const timeOwner = (owner: Owner) => timeList(pool, path, owner, total(owner), run.signal)
    run.report(`  warming up`)
    for (let round = 0; round < WARM_UP_ROUNDS; round++) {
      for (const owner of [large, small]) await timeOwner(owner)
    }
    return await compareTimes(
      run,
      () => timeOwner(large),
      () => timeOwner(small),
    )
  } finally {
    await pool.destroy()
  }
}

function compareLists(path: string): Comparison {
  return {
    async open(run, api) {
      const ids: string[] = []
      for (let count = 0; count < COMPARED_SANDBOXES; count++) ids.push((await api.create(SMALL)).id)
      const list = () => time(run, async () => (await api.open('GET', path)).toArray())
      for (let round = 0; round < WARM_UP_ROUNDS; round++) await list()
      return {
        async takeTurn() {
          const timed = []
          for (let call = 0; call < COMPARED_CALLS; call++) timed.push(await list())
          return turnOf(timed)
        },
        async close() {
          for (const id of ids) await api.delete(id)
        },
      }
    },
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
