/**
 * A row: one thing that is measured, beside a baseline from the same run.
 *
 * Order of events: the rows asked for run one after another, in the order of the registry. A row opens the fixtures it
 * needs (the first row that asks starts and fills them, later rows get the same ones), warms both candidates up, and
 * takes samples of both in turn until its time is over. After the last row, after a failure and after Ctrl-C alike,
 * everything that was deferred is stopped, last started first.
 *
 * What must stay true: candidates alternate in short turns, because the machine's noise then falls on both; every
 * sample taken counts, the bad ones too. A row judges by the ratio, except where the promise itself is a number.
 */
export type Row = {
  name: string
  /** One line for `--list`. */
  what: string
  /** Of a sample. A sample of req/s is one turn, a sample of ms is one request. */
  unit: 'req/s' | 'ms' | 'MB/s' | 'MiB'
  baseline: string
  target?: Target
  /** Too long or too large for a run of everything: measured only when it is named. */
  optIn?: true
  measure(run: Run): Promise<Measurement>
}

/**
 * What ours over baseline, p50 over p50, should be; with `plus`, ours may be so much more than that, in its unit. Or
 * what our p50 alone should be, where a number was promised.
 */
export type Target = { ratio: '>=' | '<='; value: number; plus?: number } | { p50: '<='; value: number }

export type Measurement = {
  ours: number[]
  baseline: number[]
  /** The share of our attempts that gave the right answer, 0 to 1. */
  ok: number
}

export type Run = {
  /** How long a row takes samples, both candidates together. */
  seconds: number
  /** A quarter of the samples, where a row counts them. */
  quick: boolean
  /** Aborted by Ctrl-C. */
  signal: AbortSignal
  /** Progress, for people. */
  say(text: string): void
  /** What the fixture gives, started by whoever asks first. */
  open<T>(fixture: Fixture<T>): Promise<T>
  /** Said right where something is started; runs when the run ends, however it ends. */
  defer(stop: () => Promise<void> | void): void
}

/** Starts what rows share. It is known by its identity, so it is a constant, not made anew for each call. */
export type Fixture<T> = (run: Run) => Promise<T>
