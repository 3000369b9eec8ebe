/** Forks: of a paused sandbox, of many at once, and how long a running source stands still for one. */

import { bootBareVm, saveState } from '../../../host-agent/src/testing/bare-vm.ts'
import { compareTimes, rounds, settle, type Timed, time } from '../compare-times.ts'
import type { Measurement, Row, Run } from '../row.ts'
import type { Api } from '../vm/api.ts'
import { bareParts } from '../vm/bare-parts.ts'
import { LARGE, vmBox } from '../vm/box.ts'
import { openBareClone, pause } from './pause.ts'

const FORKS = 20
const BURSTS = 4
const AT_ONCE = 10
const LIVE_FORKS = 12
/** How often the source gives a sign of life. */
const TICK_MS = 2

export const forkRow: Row = {
  name: 'fork',
  what: `POST fork of a paused sandbox (${LARGE}) and the first exec of the child`,
  unit: 'ms',
  baseline: 'bare clone and its first exec',
  target: { p50: '<=', value: 200 },
  measure: (run) => measureForks(run, 1, FORKS),
}

export const fork10Row: Row = {
  name: 'fork-10',
  what: `the same, ${AT_ONCE} at once`,
  unit: 'ms',
  baseline: `${AT_ONCE} bare clones at once`,
  measure: (run) => measureForks(run, AT_ONCE, BURSTS),
}

export const liveForkRow: Row = {
  name: 'fork-live',
  what: `longest silence of a running source that gives a sign every ${TICK_MS} ms, while it is forked`,
  unit: 'ms',
  baseline: 'stop, save state, go on',
  target: { p50: '<=', value: 40 },
  measure: measureLiveFork,
}

async function measureForks(run: Run, width: number, count: number): Promise<Measurement> {
  const { api } = await run.open(vmBox)
  const clone = await openBareClone(run)
  const { id } = await api.create(LARGE)
  try {
    await api.exec(id, 'true')
    await pause(run, api, id)
    const forkOne = async (): Promise<Timed> => {
      let child: string | undefined
      const timed = await time(run, async () => {
        child = (await api.post(`/v1/sandboxes/${id}/fork`)).id
        await api.until(child, 'running')
        await api.exec(child, 'true')
      })
      if (child !== undefined) await api.delete(child)
      return timed
    }
    const atOnce = (one: () => Promise<Timed>) => () => Promise.all(Array.from({ length: width }, one))
    return await compareTimes(run, atOnce(forkOne), atOnce(clone), {
      rounds: rounds(run, count),
      settle: () => settle(run),
    })
  } finally {
    await api.delete(id)
  }
}

async function measureLiveFork(run: Run): Promise<Measurement> {
  const { api } = await run.open(vmBox)
  const { id } = await api.create(LARGE)
  const bare = await bootBareVm(await run.open(bareParts), { vcpu: 1, mem_mib: 1024 })
  run.defer(bare.stop)
  try {
    const standStill = () =>
      time(run, async () => {
        await bare.qmp.run('stop')
        await saveState(bare)
        await bare.qmp.run('cont')
      })
    return await compareTimes(run, () => forkLive(api, id), standStill, { rounds: rounds(run, LIVE_FORKS) })
  } finally {
    await api.delete(id)
  }
}

async function forkLive(api: Api, id: string): Promise<Timed> {
  const ended = new AbortController()
  const ticks = listen(api, id, ended.signal)
  try {
    await ticks.begun
    const from = performance.now()
    const child = await api.post(`/v1/sandboxes/${id}/fork`, { live: true })
    await api.until(child.id, 'running')
    const ms = ticks.longestSilence(from, performance.now())
    await api.delete(child.id)
    return { ms, ok: true }
  } finally {
    ended.abort()
    await ticks.over
  }
}

/** When each sign of the source arrived. */
function listen(api: Api, id: string, signal: AbortSignal) {
  const times: number[] = []
  const { promise: begun, resolve, reject } = Promise.withResolvers<void>()
  const script = `$| = 1; while (1) { print "."; select(undef, undef, undef, ${TICK_MS / 1000}) }`
  const read = async () => {
    for await (const _ of api.stream(id, 'perl', ['-e', script], signal)) {
      times.push(performance.now())
      if (times.length > 10) resolve()
    }
  }
  const over = read().catch((error) => {
    if (!signal.aborted) reject(error)
  })
  return {
    begun,
    over,
    longestSilence(from: number, to: number): number {
      const seen = [from, ...times.filter((at) => at > from && at < to), to]
      return Math.max(...seen.slice(1).map((at, i) => at - seen[i]!))
    },
  }
}
