/** Plain-text tables for terminals: aligned columns, two spaces apart, no trailing blanks. */

export type Column<Row> = {
  title: string
  /** Numbers are easier to compare when aligned right. */
  align?: 'left' | 'right'
  cell: (row: Row) => string
}

/** One line for the titles and one for each row, each ended by a newline. */
export function renderTable<Row>(columns: readonly Column<Row>[], rows: readonly Row[]): string {
  return renderLines([columns.map(({ title }) => title), ...rows.map((row) => columns.map(({ cell }) => cell(row)))], {
    align: columns.map(({ align }) => align ?? 'left'),
  })
    .map((line) => `${line}\n`)
    .join('')
}

/** Rows without titles, as lines, for callers that put other text between them. */
export function renderLines(
  rows: readonly (readonly string[])[],
  { align = [] }: { align?: readonly ('left' | 'right')[] } = {},
): string[] {
  const widths: number[] = []
  for (const row of rows) {
    for (const [index, cell] of row.entries()) widths[index] = Math.max(widths[index] ?? 0, cell.length)
  }
  const pad = (cell: string, index: number) =>
    align[index] === 'right' ? cell.padStart(widths[index]!) : cell.padEnd(widths[index]!)
  return rows.map((row) => row.map(pad).join('  ').trimEnd())
}
