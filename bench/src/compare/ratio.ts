/**
 * How much faster or slower one version is than another, from samples taken in turns. Pure.
 *
 * A round holds the samples of both versions that were taken one right after the other, so whatever else the machine
 * did at that moment affected both. The interval comes from resampling whole rounds (a cluster bootstrap): the samples
 * of a round stay together, so noise that both versions share cancels out, and samples of the same turn are not
 * mistaken for independent ones.
 */
import { createRandom } from '@warren/kit/seeded-random'
import { percentile } from '../stats.ts'

export type Round = { old: readonly number[]; new: readonly number[] }

export type RatioEstimate = {
  rounds: number
  samples: { old: number; new: number }
  median: { old: number; new: number }
  /** The median of the new version divided by that of the old one. */
  ratio: number
  /** 95 % confidence interval of the ratio. */
  interval: { low: number; high: number }
}

export type Verdict = 'faster' | 'slower' | 'no difference shown' | 'too few rounds'

/** Fewer rounds than this cannot give a 95 % interval of a median, whatever their values are. */
export const MIN_ROUNDS = 6

const RESAMPLES = 2_000
/** Fixed, so that the same samples always give the same interval. */
const SEED = 20_260_101

export function estimateRatio(rounds: readonly Round[]): RatioEstimate {
  const inOrder = rounds.map((_, at) => at)
  const medianOfOld = createMedianOf(rounds.map((round) => round.old))
  const medianOfNew = createMedianOf(rounds.map((round) => round.new))
  const median = { old: medianOfOld(inOrder), new: medianOfNew(inOrder) }
  if (!(median.old > 0)) throw new Error(`cannot compare with a median of ${median.old}`)

  const random = createRandom(SEED)
  const ratios = Float64Array.from({ length: RESAMPLES }, () => {
    const drawn = inOrder.map(() => Math.floor(random() * rounds.length))
    return medianOfNew(drawn) / medianOfOld(drawn)
  }).sort()

  return {
    rounds: rounds.length,
    samples: { old: countSamples(rounds, 'old'), new: countSamples(rounds, 'new') },
    median,
    ratio: median.new / median.old,
    interval: { low: percentile(ratios, 2.5), high: percentile(ratios, 97.5) },
  }
}

/** A difference is shown when the interval excludes a ratio of 1. */
export function decideVerdict({ rounds, interval }: RatioEstimate, lessIsBetter: boolean): Verdict {
  if (rounds < MIN_ROUNDS) return 'too few rounds'
  if (interval.low <= 1 && interval.high >= 1) return 'no difference shown'
  return interval.high < 1 === lessIsBetter ? 'faster' : 'slower'
}

const countSamples = (rounds: readonly Round[], side: keyof Round): number =>
  rounds.reduce((count, round) => count + round[side].length, 0)

/** Returns a function that gives the median of all samples of the rounds with the given indices. */
function createMedianOf(rounds: readonly (readonly number[])[]): (indices: readonly number[]) => number {
  const longest = Math.max(...rounds.map((samples) => samples.length), 0)
  const buffer = new Float64Array(longest * rounds.length) // Shared by all calls: there are thousands.
  return (indices) => {
    let count = 0
    for (const index of indices) {
      const samples = rounds[index]! // The caller draws from the indices that exist.
      buffer.set(samples, count)
      count += samples.length
    }
    if (count === 0) throw new Error('cannot take the median of no samples')
    const sorted = buffer.subarray(0, count).sort()
    const middle = count >> 1
    return count % 2 === 1 ? sorted[middle]! : (sorted[middle - 1]! + sorted[middle]!) / 2 // Both are below `count`.
  }
}
