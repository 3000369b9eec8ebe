/** `npm run bench`: which rows, how they are run, and what is said about them. */
import { loadavg } from 'node:os'
import { parseArgs } from 'node:util'
import { errorText } from '@warren/kit/text'
import type { Fixture, Row, Run } from './row.ts'
import { Skip } from './skip.ts'
import { type Result, resultOf } from './stats.ts'
import { renderTable } from './table.ts'

export type Output = {
  /** Results and nothing else. */
  out(text: string): void
  /** Progress and complaints. */
  err(text: string): void
}

/** A target that is missed is a result; only what could not be measured is a failure. */
const EXIT = { measured: 0, notMeasured: 1, usage: 2 } as const

const SECONDS_DEFAULT = 30

const USAGE = `Usage: npm run -s bench -- [options] [row …]

Measures the rows named, or all but those marked as opt-in, each beside a baseline in the same run.

  --json       one JSON object per row and line, and nothing else on stdout
  --list       the rows there are
  --seconds N  how long each row takes samples (${SECONDS_DEFAULT}), where it does not count them
  --quick      a quarter of the samples where a row counts them
  --help       this text

Percentiles are over all samples, by nearest rank from the smallest; nothing is trimmed. A sample of ms is one request,
a sample of req/s is one turn of a quarter of a second. A row that cannot be measured here is skipped and says why. The
exit status is 0 when everything else was measured, met or not.
`

type Asked = { rows: Row[]; json: boolean; list: boolean; help: boolean; quick: boolean; seconds: number }

export async function runBench(
  rows: readonly Row[],
  args: readonly string[],
  output: Output,
  signal: AbortSignal,
): Promise<number> {
  let asked: Asked
  try {
    asked = parse(rows, args)
  } catch (error) {
    output.err(`bench: ${errorText(error)}\n`)
    return EXIT.usage
  }
  if (asked.help) output.out(USAGE)
  else if (asked.list) output.out(renderList(rows))
  else return measureAll(asked, output, signal)
  return EXIT.measured
}

function parse(rows: readonly Row[], args: readonly string[]): Asked {
  const { values, positionals } = parseArgs({
    args: [...args],
    allowPositionals: true,
    options: {
      json: { type: 'boolean', default: false },
      list: { type: 'boolean', default: false },
      help: { type: 'boolean', short: 'h', default: false },
      quick: { type: 'boolean', default: false },
      seconds: { type: 'string', default: String(SECONDS_DEFAULT) },
    },
  })
  const unknown = positionals.filter((name) => !rows.some((row) => row.name === name))
  if (unknown.length > 0) {
    throw new Error(`there is no row ${unknown.join(', ')}; the rows are ${rows.map(({ name }) => name).join(', ')}`)
  }
  const seconds = Number(values.seconds)
  if (!(seconds > 0 && seconds <= 3600)) {
    throw new Error(`--seconds must be a number above 0 and at most 3600, not "${values.seconds}"`)
  }
  return {
    ...values,
    seconds,
    rows:
      positionals.length === 0
        ? rows.filter((row) => !row.optIn)
        : rows.filter(({ name }) => positionals.includes(name)),
  }
}

function renderList(rows: readonly Row[]): string {
  const width = Math.max(...rows.map(({ name }) => name.length))
  return rows.map(({ name, what, optIn }) => `${name.padEnd(width)}  ${what}${optIn ? ' (opt-in)' : ''}\n`).join('')
}

async function measureAll(asked: Asked, output: Output, signal: AbortSignal): Promise<number> {
  const results: { result: Result; target: Row['target'] }[] = []
  let failed = false
  const complain = (what: string, error: unknown) => {
    failed = true
    output.err(`bench: ${what}: ${errorText(error)}\n`)
  }

  const stops = new AsyncDisposableStack()
  try {
    const run = createRun(asked, output, signal, stops)
    for (const row of asked.rows) {
      if (signal.aborted) break
      try {
        output.err(`${row.name}: ${row.what}\n`)
        const result = resultOf(row, await row.measure(run))
        output.err(`  load average ${loadavg()[0]!.toFixed(2)}\n`)
        results.push({ result, target: row.target })
        if (asked.json) output.out(`${JSON.stringify(result)}\n`)
      } catch (error) {
        if (error instanceof Skip) output.err(`bench: skipped ${row.name}: ${error.message}\n`)
        else if (!signal.aborted) complain(`could not measure ${row.name}`, error)
      }
    }
  } finally {
    await stops.disposeAsync().catch((error) => complain('could not stop everything', error))
  }

  if (signal.aborted) complain('interrupted', signal.reason)
  if (!asked.json && results.length > 0) output.out(renderTable(results))
  return failed ? EXIT.notMeasured : EXIT.measured
}

function createRun({ seconds, quick }: Asked, output: Output, signal: AbortSignal, stops: AsyncDisposableStack): Run {
  const opened = new Map<Fixture<unknown>, Promise<unknown>>()
  const run: Run = {
    seconds,
    quick,
    signal,
    say: (text) => output.err(`${text}\n`),
    async open<T>(fixture: Fixture<T>): Promise<T> {
      signal.throwIfAborted()
      if (!opened.has(fixture)) opened.set(fixture, fixture(run))
      return opened.get(fixture) as Promise<T> // Put there under this very key.
    },
    defer: (stop) => stops.defer(stop),
  }
  return run
}
