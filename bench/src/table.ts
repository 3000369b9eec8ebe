/** The results for people: one aligned line per row. */
import type { Target } from './row.ts'
import { meets, type Result } from './stats.ts'

export type Column<Line> = { title: string; align: 'left' | 'right'; cell: (line: Line) => string }

type Line = { result: Result; target: Target | undefined }

const COLUMNS: Column<Line>[] = [
  { title: 'row', align: 'left', cell: ({ result }) => result.name },
  { title: 'unit', align: 'left', cell: ({ result }) => result.unit },
  { title: 'n', align: 'right', cell: ({ result }) => String(result.n) },
  { title: 'ok', align: 'right', cell: ({ result }) => renderShare(result.ok) },
  { title: 'p50', align: 'right', cell: ({ result }) => renderNumber(result.p50) },
  { title: 'p95', align: 'right', cell: ({ result }) => renderNumber(result.p95) },
  { title: 'p99', align: 'right', cell: ({ result }) => renderNumber(result.p99) },
  { title: 'max', align: 'right', cell: ({ result }) => renderNumber(result.max) },
  { title: 'baseline', align: 'left', cell: ({ result }) => result.baseline.name },
  { title: 'its p50', align: 'right', cell: ({ result }) => renderNumber(result.baseline.p50) },
  { title: 'ratio', align: 'right', cell: ({ result }) => result.ratio.toFixed(2) },
  { title: 'target', align: 'left', cell: renderTarget },
]

export const renderTable = (results: readonly Line[]): string => renderColumns(COLUMNS, results)

export function renderColumns<Line>(columns: readonly Column<Line>[], lines: readonly Line[]): string {
  const rows = [columns.map(({ title }) => title), ...lines.map((line) => columns.map(({ cell }) => cell(line)))]
  const widths = columns.map((_, at) => Math.max(...rows.map((cells) => cells[at]!.length)))
  const pad = (text: string, at: number) =>
    columns[at]!.align === 'left' ? text.padEnd(widths[at]!) : text.padStart(widths[at]!)
  return rows.map((cells) => `${cells.map(pad).join('  ').trimEnd()}\n`).join('')
}

export const renderNumber = (value: number): string => value.toFixed(value < 100 ? 2 : 0)

/** Rounded down, so that 100 % means all of them. */
const renderShare = (share: number): string => `${(Math.floor(share * 10_000) / 100).toFixed(share === 1 ? 0 : 2)} %`

function renderTarget({ result, target }: Line): string {
  if (target === undefined) return ''
  return `${renderGoal(result, target)} ${meets(target, result) ? 'met' : 'NOT met'}`
}

function renderGoal({ unit }: Result, target: Target): string {
  if ('p50' in target) return `p50 ${target.p50} ${target.value} ${unit}`
  return `${target.ratio} ${target.value}${target.plus === undefined ? '' : ` x + ${target.plus} ${unit}`}`
}
