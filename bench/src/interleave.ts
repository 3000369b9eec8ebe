/** Both candidates in turn until the time is over: whatever else the machine does, it does to both. */
import type { Run } from './row.ts'

export type Turns = { ours: number[]; baseline: number[] }

const SAY_EVERY_MS = 5_000

export async function interleave(
  run: Run,
  candidates: { ours: () => Promise<number>; baseline: () => Promise<number> },
): Promise<Turns> {
  const turns: Turns = { ours: [], baseline: [] }
  const startedAt = performance.now()
  const elapsedMs = () => performance.now() - startedAt
  let saidAtMs = 0
  // At least one round, however short the time.
  for (let round = 0; round === 0 || elapsedMs() < run.seconds * 1000; round++) {
    // The first of a round changes, so that neither always runs in the wake of the other.
    const order = round % 2 === 0 ? (['ours', 'baseline'] as const) : (['baseline', 'ours'] as const)
    for (const name of order) {
      run.signal.throwIfAborted()
      turns[name].push(await candidates[name]())
    }
    if (elapsedMs() - saidAtMs < SAY_EVERY_MS) continue
    saidAtMs = elapsedMs()
    run.say(`  measured ${Math.round(saidAtMs / 1000)} of ${run.seconds} s`)
  }
  return turns
}
