/** Rows whose samples are times of single attempts. A failed attempt of ours counts, with the time it took. */
import { setTimeout as delay } from 'node:timers/promises'
import { errorText } from '@warren/kit/error-text'
import { interleave, type Pace } from './interleave.ts'
import type { Measurement, Run, Turn } from './row.ts'
import { Skip } from './skip.ts'

export type Timed = { ms: number; ok: boolean }

/** A turn is one attempt or several at once. */
export async function compareTimes(
  run: Run,
  timeOurs: () => Promise<Timed | Timed[]>,
  timeBaseline: () => Promise<Timed | Timed[]>,
  pace: Pace = {},
): Promise<Measurement> {
  let ok = 0
  const turns = await interleave(
    run,
    {
      async ours() {
        const timed = [await timeOurs()].flat()
        ok += timed.filter((one) => one.ok).length
        return timed.map(({ ms }) => ms)
      },
      async baseline() {
        const timed = [await timeBaseline()].flat()
        if (timed.some((one) => !one.ok))
          throw new Error('the baseline gave a wrong answer, so it cannot be compared with')
        return timed.map(({ ms }) => ms)
      },
    },
    pace,
  )
  return { ...turns, ok: ok / turns.ours.length }
}

/** How long the work took, and whether it succeeded. An error is printed and counts as a failed attempt. */
export async function time(run: Run, work: () => Promise<unknown>): Promise<Timed> {
  const startedAt = performance.now()
  try {
    await work()
    return { ms: performance.now() - startedAt, ok: true }
  } catch (error) {
    if (run.signal.aborted || error instanceof Skip) throw error
    run.report(`  failed: ${errorText(error)}`)
    return { ms: performance.now() - startedAt, ok: false }
  }
}

/** The turn of a comparison, of one attempt or several. */
export function turnOf(timed: Timed | Timed[]): Turn {
  const attempts = [timed].flat()
  return {
    samples: attempts.map(({ ms }) => ms),
    failed: attempts.filter(({ ok }) => !ok).length,
  }
}

/** A quarter of them for a first look, and at least one. */
export const rounds = (run: Run, count: number): number => (run.quick ? Math.max(Math.ceil(count / 4), 1) : count)

/** Enough to show a difference of a tenth on a machine that does other work too. */
const COMPARED_ROUNDS = 40
/** For comparisons whose turns are long. */
export const countedPace = (run: Run): Pace => ({ rounds: rounds(run, COMPARED_ROUNDS), settle: () => settle(run) })

/** Long enough for the deletion of the previous sandbox, and for what the host agent prepares for the next one. */
export const SETTLE_MS = 1_500
export const settle = (run: Run): Promise<void> => delay(SETTLE_MS, undefined, { signal: run.signal })
