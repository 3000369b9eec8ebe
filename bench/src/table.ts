/** Prints the results as a table. */
import { type Column, renderTable } from '@warren/kit/table'
import type { Target } from './row.ts'
import { meets, type Result } from './stats.ts'

type Line = { result: Result; target: Target | undefined }

const COLUMNS: Column<Line>[] = [
  { title: 'row', cell: ({ result }) => result.name },
  { title: 'unit', cell: ({ result }) => result.unit },
  { title: 'n', align: 'right', cell: ({ result }) => String(result.n) },
  { title: 'ok', align: 'right', cell: ({ result }) => renderShare(result.ok) },
  { title: 'p50', align: 'right', cell: ({ result }) => renderNumber(result.p50) },
  { title: 'p95', align: 'right', cell: ({ result }) => renderNumber(result.p95) },
  { title: 'p99', align: 'right', cell: ({ result }) => renderNumber(result.p99) },
  { title: 'max', align: 'right', cell: ({ result }) => renderNumber(result.max) },
  { title: 'baseline', cell: ({ result }) => result.baseline.name },
  { title: 'its p50', align: 'right', cell: ({ result }) => renderNumber(result.baseline.p50) },
  { title: 'ratio', align: 'right', cell: ({ result }) => result.ratio.toFixed(2) },
  { title: 'target', cell: renderTarget },
]

export const renderResults = (lines: readonly Line[]): string => renderTable(COLUMNS, lines)

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
