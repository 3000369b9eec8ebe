/**
 * A row: one thing that is measured, beside a baseline from the same run.
 *
 * Order of events: the rows that were asked for run one after another, in the order of the registry. A row opens the
 * fixtures it needs (the first row that needs a fixture starts it, later rows share it), warms both candidates up, and
 * takes samples of both in turn until its time is over. After the last row, after a failure and after Ctrl-C alike,
 * everything that was deferred is stopped, last started first.
 *
 * What must stay true: candidates alternate in short turns, because the machine's noise then affects both; every
 * sample counts, outliers too. A row is evaluated by the ratio, except where the target is an absolute number.
 */
import type { Pace } from './interleave.ts'
import type { Api } from './vm/api.ts'

export type Row = {
  name: string
  /** One line for `--list`. */
  what: string
  /** Unit of a sample. A sample of req/s is one turn, a sample of ms is one request. */
  unit: 'req/s' | 'ms' | 'MB/s' | 'MiB'
  baseline: string
  target?: Target
  /** Too long or too large for a run of everything: measured only when it is named. */
  optIn?: true
  measure(run: Run): Promise<Measurement>
  /** How `--compare` measures the same thing on two versions of Warren. */
  comparison: Comparison | NotComparable
}

/**
 * `ratio`: Warren's p50 divided by the baseline's p50 must be at least or at most `value`. With `plus`, Warren's p50 may
 * also exceed that limit by this much, in the row's unit. `p50`: an absolute limit for Warren's p50.
 */
export type Target = { ratio: '>=' | '<='; value: number; plus?: number } | { p50: '>=' | '<='; value: number }

export type Measurement = {
  ours: number[]
  baseline: number[]
  /** The share of Warren's attempts that gave the right result, 0 to 1. */
  ok: number
}

/** Only the public API is used, so that the same program can measure a Warren of any version. */
export type Comparison = {
  /** Settings of both instances. Rows with the same settings share the instances. */
  env?: Readonly<Record<string, string>>
  /** Turns until the row's time is over, unless rounds are counted. */
  pace?: (run: Run) => Pace
  /** Prepares an instance for the row. Its data directory is for what the API does not tell. */
  open(run: Run, api: Api, dataDir: string): Promise<Subject>
}
export type NotComparable = { whyNot: string }

/** An instance that is ready to be measured. */
export type Subject = {
  takeTurn(): Promise<Turn>
  close(): Promise<void>
}
export type Turn = { samples: number[]; failed: number }

export type Run = {
  /** How long a row takes samples, both candidates together. */
  seconds: number
  /** A quarter of the samples, where a row counts them. */
  quick: boolean
  /** Aborted by Ctrl-C. */
  signal: AbortSignal
  /** Prints progress, for people. */
  report(text: string): void
  /** Returns what the fixture provides; the first call starts it. */
  open<T>(fixture: Fixture<T>): Promise<T>
  /** Called right where something is started; `stop` runs when the run ends, however it ends. */
  defer(stop: () => Promise<void> | void): void
}

/** Starts what rows share. It is identified by reference, so it must be a constant, not created for each call. */
export type Fixture<T> = (run: Run) => Promise<T>
