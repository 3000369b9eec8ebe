/** Rows whose samples are times of single attempts. An attempt of ours that fails counts, with the time it took. */
import { setTimeout as delay } from 'node:timers/promises'
import { errorText } from '@warren/kit/text'
import { interleave, type Pace } from './interleave.ts'
import type { Measurement, Run } from './row.ts'
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
        if (timed.some((one) => !one.ok)) throw new Error('the baseline gave a wrong answer: it is no baseline')
        return timed.map(({ ms }) => ms)
      },
    },
    pace,
  )
  return { ...turns, ok: ok / turns.ours.length }
}

/** How long the work took, and whether it was right. What it throws is told and counts as wrong. */
export async function time(run: Run, work: () => Promise<unknown>): Promise<Timed> {
  const startedAt = performance.now()
  try {
    await work()
    return { ms: performance.now() - startedAt, ok: true }
  } catch (error) {
    if (run.signal.aborted || error instanceof Skip) throw error
    run.say(`  failed: ${errorText(error)}`)
    return { ms: performance.now() - startedAt, ok: false }
  }
}

/** A quarter of them for a first look, and never none. */
export const rounds = (run: Run, count: number): number => (run.quick ? Math.max(Math.ceil(count / 4), 1) : count)

/** Deleting the one before and whatever is prepared for the next: a client that takes its time finds it done. */
export const SETTLE_MS = 1_500
export const settle = (run: Run): Promise<void> => delay(SETTLE_MS, undefined, { signal: run.signal })
