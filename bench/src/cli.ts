/** `npm run bench`: which rows are run, how, and what is printed about them. */
import { loadavg } from 'node:os'
import { errorText } from '@warren/kit/error-text'
import { renderLines } from '@warren/kit/table'
import { Command, CommanderError, InvalidArgumentError } from 'commander'
import { createComparer, type Side, type StartSide } from './compare/compare.ts'
import { renderComparison } from './compare/table.ts'
import type { Fixture, Row, Run } from './row.ts'
import { Skip } from './skip.ts'
import { resultOf } from './stats.ts'
import { renderResults } from './table.ts'

export type Output = {
  /** Results and nothing else. */
  out(text: string): void
  /** Progress and errors. */
  err(text: string): void
}

/** The two versions that `--compare` starts. */
export type Versions = {
  /** The full hash of a commit, or undefined if there is no such commit. */
  findCommit(name: string): Promise<string | undefined>
  /** Prepares the commit to be started, and says what both sides are called. */
  prepare(run: Run, commit: string): Promise<{ labels: Record<Side, string>; startSide: StartSide }>
}

/** A missed target or a slower version is a result; only what could not be measured is a failure. */
const EXIT = { measured: 0, notMeasured: 1, usage: 2 } as const

const DETAILS = `
Percentiles are over all samples, by nearest rank from the smallest; nothing is trimmed. A sample of ms is one request,
a sample of req/s is one turn of a quarter of a second. A row that cannot be measured on this machine is skipped and
the reason printed. The exit status is 0 when everything else was measured, whether targets were met or not.

With --compare, a Warren of <commit> and one of this checkout run at the same time and are measured in turns through the
public API, so that other load on the machine affects both. The table shows the median of each, the ratio new/old with
its 95 % confidence interval (bootstrap over rounds), and a verdict: faster or slower when the interval excludes 1, else
"no difference shown". <commit> is checked out in a temporary folder, which is removed at the end. This needs root.`

type Options = {
  rows: Row[]
  /** Whether rows were named, rather than all of them being run. */
  named: boolean
  compare?: string
  json: boolean
  list: boolean
  quick: boolean
  seconds: number
}

export async function runBench(
  rows: readonly Row[],
  args: readonly string[],
  output: Output,
  signal: AbortSignal,
  versions: Versions,
): Promise<number> {
  let options: Options
  try {
    options = parse(rows, args, output)
  } catch (error) {
    // Commander has printed the help, or what is wrong with the command line.
    if (error instanceof CommanderError) return error.exitCode === 0 ? EXIT.measured : EXIT.usage
    throw error
  }
  if (options.list) {
    output.out(renderList(rows))
    return EXIT.measured
  }
  if (options.compare !== undefined) return compareAll(options, options.compare, output, signal, versions)
  return measureAll(options, output, signal)
}

function parse(rows: readonly Row[], args: readonly string[], output: Output): Options {
  const command = new Command('bench')
    .usage('[options] [row …]')
    .description(
      'Measures the named rows, or all except those marked as opt-in, each beside a baseline in the same run.',
    )
    .argument('[row...]', 'rows to measure; --list names them', (name: string, chosen: string[] = []) => {
      if (rows.some((row) => row.name === name)) return [...chosen, name]
      throw new InvalidArgumentError(`there is no row ${name}; the rows are ${rows.map((row) => row.name).join(', ')}`)
    })
    .option('--compare <commit>', 'compare this checkout with a commit, instead of with baselines')
    .option('--json', 'one JSON object per row and line, and nothing else on stdout', false)
    .option('--list', 'list the rows', false)
    .option('--seconds <n>', 'how long each row takes samples, where it does not count them', parseSeconds, 30)
    .option('--quick', 'a quarter of the samples where a row counts them', false)
    .addHelpText('after', DETAILS)
    .exitOverride()
    .configureOutput({
      writeOut: output.out,
      writeErr: output.err,
      outputError: (text, write) => write(text.replace(/^error: /, 'bench: ')),
    })
    .parse(args, { from: 'user' })
  const chosen: string[] = command.processedArgs[0] ?? []
  return {
    ...command.opts<Pick<Options, 'compare' | 'json' | 'list' | 'seconds' | 'quick'>>(),
    named: chosen.length > 0,
    rows: chosen.length > 0 ? rows.filter(({ name }) => chosen.includes(name)) : rows.filter((row) => !row.optIn),
  }
}

function parseSeconds(text: string): number {
  const seconds = Number(text)
  if (seconds > 0 && seconds <= 3600) return seconds
  throw new InvalidArgumentError('It must be a number above 0 and at most 3600.')
}

function renderList(rows: readonly Row[]): string {
  return renderLines(rows.map(({ name, what, optIn }) => [name, `${what}${optIn ? ' (opt-in)' : ''}`]))
    .map((line) => `${line}\n`)
    .join('')
}

async function measureAll(options: Options, output: Output, signal: AbortSignal): Promise<number> {
  return runAll(options, output, signal, {
    verb: 'measure',
    title: ({ name, what }) => `${name}: ${what}`,
    prepare: async (run) => async (row) => resultOf(row, await row.measure(run)),
    render: (results) => renderResults(results.map(({ row, result }) => ({ result, target: row.target }))),
  })
}

async function compareAll(
  options: Options,
  name: string,
  output: Output,
  signal: AbortSignal,
  versions: Versions,
): Promise<number> {
  const commit = await versions.findCommit(name)
  if (commit === undefined) {
    output.err(`bench: "${name}" is not a commit of this repository; give a hash, a branch or a tag\n`)
    return EXIT.usage
  }
  for (const { name, comparison } of options.rows) {
    if ('whyNot' in comparison) output.err(`bench: ${name} cannot be compared: ${comparison.whyNot}\n`)
  }
  const rows = options.rows.filter(({ comparison }) => !('whyNot' in comparison))
  // A row that was asked for by name and has no result is a failure; without names all rows that can be are compared.
  const notComparable = options.named && rows.length < options.rows.length
  if (rows.length === 0) return EXIT.notMeasured

  let labels: Record<Side, string> | undefined
  const exitCode = await runAll({ ...options, rows }, output, signal, {
    verb: 'compare',
    title: ({ name }) => `${name}: old and new in turns`,
    async prepare(run) {
      const prepared = await versions.prepare(run, commit)
      labels = prepared.labels
      return createComparer(run, prepared.startSide)
    },
    isFailure: ({ verdict }) => verdict === 'invalid',
    render: (results) =>
      renderComparison(
        results.map(({ result }) => result),
        labels!, // Set before the first result.
      ),
  })
  return notComparable && exitCode === EXIT.measured ? EXIT.notMeasured : exitCode
}

type Task<Result> = {
  /** For messages: failed to … */
  verb: string
  /** Printed before a row is run. */
  title(row: Row): string
  /** Returns the function that gives a row's result. */
  prepare(run: Run): Promise<(row: Row) => Promise<Result>>
  isFailure?: (result: Result) => boolean
  render(results: { row: Row; result: Result }[]): string
}

async function runAll<Result extends object>(
  options: Options,
  output: Output,
  signal: AbortSignal,
  { verb, title, prepare, isFailure, render }: Task<Result>,
): Promise<number> {
  const results: { row: Row; result: Result }[] = []
  let failed = false
  const fail = (what: string, error: unknown) => {
    failed = true
    output.err(`bench: ${what}: ${errorText(error)}\n`)
  }

  const stops = new AsyncDisposableStack()
  try {
    const runRow = await prepare(createRun(options, output, signal, stops))
    for (const row of options.rows) {
      if (signal.aborted) break
      try {
        output.err(`${title(row)}\n`)
        const result = await runRow(row)
        output.err(`  load average ${loadavg()[0]!.toFixed(2)}\n`)
        results.push({ row, result })
        failed ||= isFailure?.(result) ?? false
        if (options.json) output.out(`${JSON.stringify(result)}\n`)
      } catch (error) {
        if (error instanceof Skip) output.err(`bench: skipped ${row.name}: ${error.message}\n`)
        else if (!signal.aborted) fail(`failed to ${verb} ${row.name}`, error)
      }
    }
  } catch (error) {
    if (!signal.aborted) fail('failed to prepare', error)
  } finally {
    await stops.disposeAsync().catch((error) => fail('failed to stop everything', error))
  }

  if (signal.aborted) fail('interrupted', signal.reason)
  if (!options.json && results.length > 0) output.out(render(results))
  return failed ? EXIT.notMeasured : EXIT.measured
}

function createRun(options: Options, output: Output, signal: AbortSignal, stops: AsyncDisposableStack): Run {
  const opened = new Map<Fixture<unknown>, Promise<unknown>>()
  const run: Run = {
    seconds: options.seconds,
    quick: options.quick,
    signal,
    report: (text) => output.err(`${text}\n`),
    async open<T>(fixture: Fixture<T>): Promise<T> {
      signal.throwIfAborted()
      if (!opened.has(fixture)) opened.set(fixture, fixture(run))
      return opened.get(fixture) as Promise<T> // Stored under this very key.
    },
    defer: (stop) => stops.defer(stop),
  }
  return run
}
