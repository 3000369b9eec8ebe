/** The result of `--compare` for people. */
import { type Column, renderTable } from '@warren/kit/table'
import { renderNumber } from '../table.ts'
import type { ComparedRow, Side } from './compare.ts'

const COLUMNS: Column<ComparedRow>[] = [
  { title: 'row', cell: ({ name }) => name },
  { title: 'unit', cell: ({ unit }) => unit },
  { title: 'rounds', align: 'right', cell: ({ rounds }) => String(rounds) },
  { title: 'n', align: 'right', cell: ({ samples }) => renderCount(samples) },
  { title: 'median old', align: 'right', cell: ({ median }) => renderNumber(median.old) },
  { title: 'median new', align: 'right', cell: ({ median }) => renderNumber(median.new) },
  { title: 'new/old', align: 'right', cell: ({ ratio }) => ratio.toFixed(3) },
  {
    title: '95 % interval',
    cell: ({ interval }) => `${interval.low.toFixed(3)} to ${interval.high.toFixed(3)}`,
  },
  { title: 'verdict', cell: renderVerdict },
]

export function renderComparison(rows: readonly ComparedRow[], labels: Record<Side, string>): string {
  return `old: ${labels.old}\nnew: ${labels.new}\n\n${renderTable(COLUMNS, rows)}`
}

/** Samples of each side: usually the same number. */
const renderCount = (samples: Record<Side, number>): string =>
  samples.old === samples.new ? String(samples.new) : `${samples.old}, ${samples.new}`

function renderVerdict({ verdict, failed }: ComparedRow): string {
  if (verdict !== 'invalid') return verdict
  return `invalid: attempts failed (old ${failed.old}, new ${failed.new})`
}
