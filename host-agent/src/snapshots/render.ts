/** Generations as text, for people. */

export type SnapshotLine = {
  sandbox: string
  generation: number
  saved_at?: string
  layers?: number
  bytes?: number
  damage?: string
}

const HEADINGS = ['SANDBOX', 'GENERATION', 'SAVED', 'DISK LAYERS', 'SIZE', 'STATE'] as const

export function renderSnapshots(lines: readonly SnapshotLine[], verified: boolean): string {
  if (lines.length === 0) return 'Nothing is saved.\n'
  const rows = [HEADINGS, ...lines.map((line) => cells(line, verified))]
  const widths = HEADINGS.map((_, column) => Math.max(...rows.map((row) => row[column]!.length))) // as long as HEADINGS
  const text = rows.map((row) =>
    row
      .map((cell, column) => cell.padEnd(widths[column]!))
      .join('  ')
      .trimEnd(),
  )
  return `${text.join('\n')}\n`
}

const cells = (line: SnapshotLine, verified: boolean): string[] => [
  line.sandbox,
  `${line.generation}`,
  line.saved_at ?? '-',
  `${line.layers ?? '-'}`,
  line.bytes === undefined ? '-' : `${Math.ceil(line.bytes / 1e6)} MB`,
  line.damage === undefined ? (verified ? 'whole' : 'kept') : `damaged: ${line.damage}`,
]
