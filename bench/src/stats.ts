/** Statistics of samples. Pure. Nothing is trimmed: the worst sample is the max. */
import type { Measurement, Row, Target } from './row.ts'

export type Summary = { n: number; p50: number; p95: number; p99: number; max: number }

/** One line of `--json`: these fields and no others. */
export type Result = {
  name: string
  unit: Row['unit']
  n: number
  ok: number
  p50: number
  p95: number
  p99: number
  max: number
  baseline: { name: string; p50: number }
  ratio: number
}

export function resultOf(row: Pick<Row, 'name' | 'unit' | 'baseline'>, measured: Measurement): Result {
  const { n, ...ours } = summarise(measured.ours)
  const baseline = summarise(measured.baseline)
  return {
    name: row.name,
    unit: row.unit,
    n,
    ok: measured.ok,
    ...ours,
    baseline: { name: row.baseline, p50: baseline.p50 },
    ratio: ratio(ours.p50, baseline.p50),
  }
}

export function summarise(samples: readonly number[]): Summary {
  if (samples.length === 0) throw new Error('cannot summarise no samples')
  const sorted = samples.toSorted((a, b) => a - b)
  return {
    n: sorted.length,
    p50: percentile(sorted, 50),
    p95: percentile(sorted, 95),
    p99: percentile(sorted, 99),
    max: sorted.at(-1)!, // There is at least one.
  }
}

/** By nearest rank: the smallest sample that at least `percent` of all samples do not exceed. Always one of the samples. */
export function percentile(sorted: ArrayLike<number>, percent: number): number {
  const rank = Math.max(Math.ceil((percent * sorted.length) / 100), 1)
  const sample = sorted[rank - 1]
  if (sample === undefined) throw new Error(`cannot take percentile ${percent} of ${sorted.length} samples`)
  return sample
}

export function ratio(ours: number, baseline: number): number {
  if (!(baseline > 0)) throw new Error(`cannot compare with a baseline of ${baseline}`)
  return ours / baseline
}

export function meets(target: Target, { p50, ratio, baseline }: Pick<Result, 'p50' | 'ratio' | 'baseline'>): boolean {
  if ('p50' in target) return target.p50 === '<=' ? p50 <= target.value : p50 >= target.value
  if (target.plus !== undefined) return p50 <= target.value * baseline.p50 + target.plus
  return target.ratio === '>=' ? ratio >= target.value : ratio <= target.value
}
