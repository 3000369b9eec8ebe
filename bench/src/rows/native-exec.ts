/** Commands in a sandbox that is a process of this machine, against the same commands without Warren. */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { compareTimes, type Timed, time, turnOf } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import { createNative, NATIVE, SPAWN_PROGRAM, withNative } from '../native/instance.ts'
import type { Comparison, Fixture, Measurement, Row, Run, Turn } from '../row.ts'
import type { Api } from '../vm/api.ts'

/** In one turn. */
const CALLS = 20
const SPAWNED = 200
const WARM_UP_ROUNDS = 10
const IN_FLIGHT = 32
const RATE_MS = 500
const WARM_UP_MS = 3_000
const SPAWN = 'posix_spawn and wait'

export const nativeExecRow: Row = {
  name: 'native-exec',
  what: 'POST exec of `true` in a sandbox that is a process, against starting it from a bare program',
  unit: 'ms',
  baseline: SPAWN,
  target: { p50: '<=', value: 4 },
  measure: (run) => withNative(run, (api, id) => measureExec(run, api, id)),
  comparison: compareExecs(async (run, api, id) => turnOf(await execMany(run, api, id))),
}

export const nativeExecRateRow: Row = {
  name: 'native-exec-rate',
  what: `the same with ${IN_FLIGHT} requests in flight, against one after another from a bare program`,
  unit: 'req/s',
  baseline: SPAWN,
  target: { p50: '>=', value: 800 },
  measure: (run) => withNative(run, (api, id) => measureRate(run, api, id)),
  comparison: compareExecs(async (_run, api, id) => ({ samples: [await rateOf(api, id)], failed: 0 })),
}

function compareExecs(takeTurn: (run: Run, api: Api, id: string) => Promise<Turn>): Comparison {
  return {
    env: NATIVE,
    async open(run, api) {
      const id = await createNative(api)
      for (let round = 0; round < WARM_UP_ROUNDS; round++) await execMany(run, api, id)
      return { takeTurn: () => takeTurn(run, api, id), close: () => api.delete(id) }
    },
  }
}

async function measureExec(run: Run, api: Api, id: string): Promise<Measurement> {
  const spawnMany = await run.open(spawner)
  for (let round = 0; round < WARM_UP_ROUNDS; round++) await execMany(run, api, id)
  return compareTimes(
    run,
    () => execMany(run, api, id),
    async () => ({ ms: await spawnMany(CALLS), ok: true }),
  )
}

async function execMany(run: Run, api: Api, id: string): Promise<Timed[]> {
  const timed = []
  for (let call = 0; call < CALLS; call++) timed.push(await time(run, () => api.exec(id, '/bin/true')))
  return timed
}

async function measureRate(run: Run, api: Api, id: string): Promise<Measurement> {
  const spawnMany = await run.open(spawner)
  await rateOf(api, id, WARM_UP_MS)
  const turns = await interleave(run, {
    ours: () => rateOf(api, id),
    baseline: async () => 1000 / (await spawnMany(SPAWNED)),
  })
  return { ...turns, ok: 1 } // A failed command ends the row: it has no rate.
}

async function rateOf(api: Api, id: string, ms = RATE_MS): Promise<number> {
  const startedAt = performance.now()
  let done = 0
  const callInTurn = async () => {
    while (performance.now() - startedAt < ms) {
      await api.exec(id, '/bin/true')
      done++
    }
  }
  await Promise.all(Array.from({ length: IN_FLIGHT }, callInTurn))
  return done / ((performance.now() - startedAt) / 1000)
}

/** Returns the mean milliseconds of so many starts of `true`. */
const spawner: Fixture<(count: number) => Promise<number>> = async (run) => {
  const child = spawn(SPAWN_PROGRAM, { stdio: ['pipe', 'pipe', 'inherit'] })
  run.defer(async () => {
    const exited = once(child, 'exit')
    child.stdin.end()
    await exited
  })
  const lines = createInterface(child.stdout)
  return async (count) => {
    const line = once(lines, 'line')
    child.stdin.write(`${count}\n`)
    return Number((await line)[0])
  }
}
