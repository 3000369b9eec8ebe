/** Forks: of a paused sandbox, many at once, and how long a running source is stopped for one. */
import { bootBareVm, saveState } from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, countedPace, rounds, settle, type Timed, time, turnOf } from '../compare-times.ts'
import type { Comparison, Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { instance, LARGE } from '../vm/instance.ts'
import { openBareClone, pause } from './pause.ts'

const FORKS = 20
const BURSTS = 4
const AT_ONCE = 10
const LIVE_FORKS = 12
/** How often the source writes a byte. */
const TICK_MS = 2

export const forkRow: Row = {
  name: 'fork',
  what: `POST fork of a paused sandbox (${LARGE}) and the first exec of the child`,
  unit: 'ms',
  baseline: 'bare clone and its first exec',
  target: { p50: '<=', value: 200 },
  measure: (run) => measureForks(run, 1, FORKS),
  comparison: compareForks(1),
}

export const fork10Row: Row = {
  name: 'fork-10',
  what: `the same, ${AT_ONCE} at once`,
  unit: 'ms',
  baseline: `${AT_ONCE} bare clones at once`,
  measure: (run) => measureForks(run, AT_ONCE, BURSTS),
  comparison: compareForks(AT_ONCE),
}

export const liveForkRow: Row = {
  name: 'fork-live',
  what: `longest gap in the output of a running source that writes every ${TICK_MS} ms, while it is forked`,
  unit: 'ms',
  baseline: 'stop, save state, continue',
  target: { p50: '<=', value: 40 },
  measure: measureLiveFork,
  comparison: {
    pace: countedPace,
    async open(_run, api) {
      const { id } = await api.create(LARGE)
      return {
        takeTurn: async () => turnOf(await forkLive(api, id)),
        close: () => api.delete(id),
      }
    },
  },
}

async function measureForks(run: Run, width: number, count: number): Promise<Measurement> {
  const { api } = await run.open(instance)
  const clone = await openBareClone(run)
  const source = await createPaused(run, api)
  try {
    return await compareTimes(
      run,
      () => atOnce(width, () => forkOne(run, api, source)),
      () => atOnce(width, clone),
      { rounds: rounds(run, count), settle: () => settle(run) },
    )
  } finally {
    await api.delete(source)
  }
}

function compareForks(width: number): Comparison {
  return {
    pace: countedPace,
    async open(run, api) {
      const source = await createPaused(run, api)
      return {
        takeTurn: async () => turnOf(await atOnce(width, () => forkOne(run, api, source))),
        close: () => api.delete(source),
      }
    },
  }
}

async function createPaused(run: Run, api: Api): Promise<string> {
  const { id } = await api.create(LARGE)
  await api.exec(id, 'true')
  await pause(run, api, id)
  return id
}

async function forkOne(run: Run, api: Api, source: string): Promise<Timed> {
  let child: string | undefined
  const timed = await time(run, async () => {
    child = (await api.post(`/v1/sandboxes/${source}/fork`)).id
    await api.until(child, 'running')
    await api.exec(child, 'true')
  })
  if (child !== undefined) await api.delete(child)
  return timed
}

const atOnce = (width: number, one: () => Promise<Timed>): Promise<Timed[]> =>
  Promise.all(Array.from({ length: width }, one))

async function measureLiveFork(run: Run): Promise<Measurement> {
  const { api } = await run.open(instance)
  const { id } = await api.create(LARGE)
  const bare = await bootBareVm(await run.open(bareParts), { vcpu: 1, mem_mib: 1024 })
  run.defer(bare.stop)
  try {
    const stopAndSave = () =>
      time(run, async () => {
        await bare.qmp.run('stop')
        await saveState(bare)
        await bare.qmp.run('cont')
      })
    return await compareTimes(run, () => forkLive(api, id), stopAndSave, { rounds: rounds(run, LIVE_FORKS) })
  } finally {
    await api.delete(id)
  }
}

async function forkLive(api: Api, id: string): Promise<Timed> {
  const stopping = new AbortController()
  const ticks = readTicks(api, id, stopping.signal)
  try {
    await ticks.started
    const from = performance.now()
    const child = await api.post(`/v1/sandboxes/${id}/fork`, { live: true })
    await api.until(child.id, 'running')
    const ms = ticks.longestGap(from, performance.now())
    await api.delete(child.id)
    return { ms, ok: true }
  } finally {
    stopping.abort()
    await ticks.ended
  }
}

/** Records when each byte of the source arrived. */
function readTicks(api: Api, id: string, signal: AbortSignal) {
  const times: number[] = []
  const { promise: started, resolve, reject } = Promise.withResolvers<void>()
  const script = `$| = 1; while (1) { print "."; select(undef, undef, undef, ${TICK_MS / 1000}) }`
  const read = async () => {
    for await (const _ of api.stream(id, 'perl', ['-e', script], signal)) {
      times.push(performance.now())
      if (times.length > 10) resolve()
    }
  }
  const ended = read().catch((error) => {
    if (!signal.aborted) reject(error)
  })
  return {
    started,
    ended,
    longestGap(from: number, to: number): number {
      const seen = [from, ...times.filter((at) => at > from && at < to), to]
      return Math.max(...seen.slice(1).map((at, i) => at - seen[i]!))
    },
  }
}
