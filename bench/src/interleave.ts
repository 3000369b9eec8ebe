/** Measures two candidates in turn until the time is over, so that other load on the machine affects both equally. */
import type { Run } from './row.ts'

export type Turns = { ours: number[]; baseline: number[] }
/** Returns a sample, or several. */
type TakeTurn = () => Promise<number | number[]>

export type Pace = {
  /** This many turns of each instead of the row's time, where a turn is long. */
  rounds?: number
  /** Runs before every turn and waits until the background work of the turn before is over. */
  settle?: () => Promise<void>
}

const PROGRESS_EVERY_MS = 5_000

/** Takes turns and returns all samples of each candidate. */
export async function interleave(
  run: Run,
  candidates: { ours: TakeTurn; baseline: TakeTurn },
  pace: Pace = {},
): Promise<Turns> {
  const rounds = await takeRounds(run, candidates, pace)
  return { ours: rounds.flatMap((round) => round.ours), baseline: rounds.flatMap((round) => round.baseline) }
}

/** The same, with the samples that were taken one right after the other kept together. */
export async function takeRounds<Name extends string>(
  run: Run,
  candidates: Record<Name, TakeTurn>,
  { rounds: count, settle }: Pace = {},
): Promise<Record<Name, number[]>[]> {
  const names = Object.keys(candidates) as Name[]
  const rounds: Record<Name, number[]>[] = []
  const startedAt = performance.now()
  const elapsedMs = () => performance.now() - startedAt
  let reportedAtMs = 0
  const isOver = () => (count === undefined ? elapsedMs() >= run.seconds * 1000 : rounds.length >= count)
  // At least one round, however short the time.
  while (rounds.length === 0 || !isOver()) {
    const round = {} as Record<Name, number[]> // Filled right below.
    // The first of a round changes, so that neither always runs in the aftermath of the other.
    for (const name of rounds.length % 2 === 0 ? names : names.toReversed()) {
      await settle?.()
      run.signal.throwIfAborted()
      round[name] = [await candidates[name]()].flat()
    }
    rounds.push(round)
    if (elapsedMs() - reportedAtMs < PROGRESS_EVERY_MS) continue
    reportedAtMs = elapsedMs()
    const seconds = Math.round(reportedAtMs / 1000)
    run.report(
      count === undefined ? `  measured ${seconds} of ${run.seconds} s` : `  round ${rounds.length} of ${count}`,
    )
  }
  return rounds
}
