/** Both candidates in turn until the time is over: whatever else the machine does, it does to both. */
import type { Run } from './row.ts'

export type Turns = { ours: number[]; baseline: number[] }
/** What one turn gives: a sample, or several. */
type Turn = () => Promise<number | number[]>

export type Pace = {
  /** So many of each instead of the row's time, where a turn is long. */
  rounds?: number
  /** Before every turn: what the turn before has left to do in the background is over. */
  settle?: () => Promise<void>
}

const SAY_EVERY_MS = 5_000

export async function interleave(
  run: Run,
  candidates: { ours: Turn; baseline: Turn },
  { rounds, settle }: Pace = {},
): Promise<Turns> {
  const turns: Turns = { ours: [], baseline: [] }
  const startedAt = performance.now()
  const elapsedMs = () => performance.now() - startedAt
  let saidAtMs = 0
  const goesOn = (round: number) => (rounds === undefined ? elapsedMs() < run.seconds * 1000 : round < rounds)
  // At least one round, however short the time.
  for (let round = 0; round === 0 || goesOn(round); round++) {
    // The first of a round changes, so that neither always runs in the wake of the other.
    const order = round % 2 === 0 ? (['ours', 'baseline'] as const) : (['baseline', 'ours'] as const)
    for (const name of order) {
      await settle?.()
      run.signal.throwIfAborted()
      turns[name].push(...[await candidates[name]()].flat())
    }
    if (elapsedMs() - saidAtMs < SAY_EVERY_MS) continue
    saidAtMs = elapsedMs()
    const seconds = Math.round(saidAtMs / 1000)
    run.say(rounds === undefined ? `  measured ${seconds} of ${run.seconds} s` : `  round ${round + 1} of ${rounds}`)
  }
  return turns
}
