/**
 * `--compare <commit>`: the same rows on a Warren of that commit and on one of this checkout, in turns.
 *
 * Order of events: the other version is checked out and set up; for each row both versions are started (rows with the
 * same settings share the two instances), prepared, and measured turn by turn through the public API, by the same
 * program, until the row's time or number of rounds is over. Both instances run all the time, each with its own data
 * directory, database, ports and network, so that background work of either costs both the same.
 */
import { errorText } from '@warren/kit/error-text'
import { takeRounds } from '../interleave.ts'
import type { Comparison, Fixture, Row, Run, Subject } from '../row.ts'
import type { Instance } from '../vm/instance.ts'
import { decideVerdict, estimateRatio, type RatioEstimate, type Round, type Verdict } from './ratio.ts'

export const SIDES = ['old', 'new'] as const
export type Side = (typeof SIDES)[number]

export type StartSide = (run: Run, side: Side, env: Comparison['env']) => Promise<Instance>

/** One line of `--compare --json`. */
export type ComparedRow = RatioEstimate & {
  name: string
  unit: Row['unit']
  verdict: Verdict | 'invalid'
  /** Attempts that gave a wrong answer or none. With any, the row is invalid: its numbers are not of the same work. */
  failed: Record<Side, number>
}

/** Compares one row; the same function must be used for all rows of a run, so that they share instances. */
export function createComparer(run: Run, startSide: StartSide): (row: Row) => Promise<ComparedRow> {
  const fixtures = new Map<string, Fixture<Instance>>()
  const openInstance = (side: Side, env: Comparison['env']) => {
    const key = JSON.stringify([side, env])
    const fixture = fixtures.get(key) ?? ((fixtureRun: Run) => startSide(fixtureRun, side, env))
    fixtures.set(key, fixture)
    return run.open(fixture)
  }
  return async (row) => {
    const { comparison } = row
    if ('whyNot' in comparison) throw new Error(comparison.whyNot)
    const instances = {
      old: await openInstance('old', comparison.env),
      new: await openInstance('new', comparison.env),
    }
    const failed = { old: 0, new: 0 }
    const rounds = await withSubjects(run, comparison, instances, (subjects) => {
      const take = (side: Side) => async () => {
        const turn = await subjects[side].takeTurn()
        failed[side] += turn.failed
        return turn.samples
      }
      return takeRounds(run, { old: take('old'), new: take('new') }, comparison.pace?.(run))
    })
    return describeRow(row, rounds, failed)
  }
}

async function withSubjects(
  run: Run,
  { open }: Comparison,
  instances: Record<Side, Instance>,
  measure: (subjects: Record<Side, Subject>) => Promise<Round[]>,
): Promise<Round[]> {
  const opened: Subject[] = []
  const openSide = async (side: Side) => {
    const { api, dataDir } = instances[side]
    const subject = await open(run, api, dataDir)
    opened.push(subject)
    return subject
  }
  try {
    return await measure({ old: await openSide('old'), new: await openSide('new') })
  } finally {
    for (const subject of opened) {
      // Its instance is thrown away in the end, and an error of the measurement is the one to report.
      await subject.close().catch((error) => run.report(`  failed to clean up: ${errorText(error)}`))
    }
  }
}

export function describeRow(
  row: Pick<Row, 'name' | 'unit'>,
  rounds: readonly Round[],
  failed: Record<Side, number>,
): ComparedRow {
  const estimate = estimateRatio(rounds)
  const lessIsBetter = row.unit === 'ms' || row.unit === 'MiB'
  const verdict = failed.old + failed.new > 0 ? 'invalid' : decideVerdict(estimate, lessIsBetter)
  return { name: row.name, unit: row.unit, ...estimate, verdict, failed }
}
