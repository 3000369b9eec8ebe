/** The results as people read them: one aligned line a row. */
import type { Target } from './row.ts'
import { meets, type Result } from './stats.ts'

type Column = { title: string; align: 'left' | 'right'; cell: (result: Result, target: Target | undefined) => string }

const COLUMNS: Column[] = [
  { title: 'row', align: 'left', cell: ({ name }) => name },
  { title: 'unit', align: 'left', cell: ({ unit }) => unit },
  { title: 'n', align: 'right', cell: ({ n }) => String(n) },
  { title: 'ok', align: 'right', cell: ({ ok }) => renderShare(ok) },
  { title: 'p50', align: 'right', cell: ({ p50 }) => renderNumber(p50) },
  { title: 'p95', align: 'right', cell: ({ p95 }) => renderNumber(p95) },
  { title: 'p99', align: 'right', cell: ({ p99 }) => renderNumber(p99) },
  { title: 'max', align: 'right', cell: ({ max }) => renderNumber(max) },
  { title: 'baseline', align: 'left', cell: ({ baseline }) => baseline.name },
  { title: 'its p50', align: 'right', cell: ({ baseline }) => renderNumber(baseline.p50) },
  { title: 'ratio', align: 'right', cell: ({ ratio }) => ratio.toFixed(2) },
  { title: 'target', align: 'left', cell: renderTarget },
]

export function renderTable(results: readonly { result: Result; target: Target | undefined }[]): string {
  const lines = [
    COLUMNS.map(({ title }) => title),
    ...results.map(({ result, target }) => COLUMNS.map(({ cell }) => cell(result, target))),
  ]
  const widths = COLUMNS.map((_, at) => Math.max(...lines.map((cells) => cells[at]!.length)))
  const pad = (text: string, at: number) =>
    COLUMNS[at]!.align === 'left' ? text.padEnd(widths[at]!) : text.padStart(widths[at]!)
  return lines.map((cells) => `${cells.map(pad).join('  ').trimEnd()}\n`).join('')
}

/** Down, so that 100 % means all of them. */
const renderShare = (share: number): string => `${(Math.floor(share * 10_000) / 100).toFixed(share === 1 ? 0 : 2)} %`

const renderNumber = (value: number): string => value.toFixed(value < 100 ? 2 : 0)

function renderTarget(result: Result, target: Target | undefined): string {
  if (target === undefined) return ''
  return `${renderGoal(result, target)} ${meets(target, result) ? 'met' : 'NOT met'}`
}

function renderGoal({ unit }: Result, target: Target): string {
  if ('p50' in target) return `p50 ${target.p50} ${target.value} ${unit}`
  return `${target.ratio} ${target.value}${target.plus === undefined ? '' : ` x + ${target.plus} ${unit}`}`
}
