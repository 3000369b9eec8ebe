/** Prints the list of snapshot generations as a table. */
import { type Column, renderTable } from '@warren/kit/table'

export type SnapshotLine = {
  sandbox: string
  generation: number
  saved_at?: string
  layers?: number
  bytes?: number
  damage?: string
}

export function renderSnapshots(lines: readonly SnapshotLine[], verified: boolean): string {
  if (lines.length === 0) return 'There are no snapshots.\n'
  const columns: Column<SnapshotLine>[] = [
    { title: 'SANDBOX', cell: ({ sandbox }) => sandbox },
    { title: 'GENERATION', cell: ({ generation }) => `${generation}` },
    { title: 'SAVED', cell: ({ saved_at = '-' }) => saved_at },
    { title: 'DISK LAYERS', cell: ({ layers = '-' }) => `${layers}` },
    { title: 'SIZE', cell: ({ bytes }) => (bytes === undefined ? '-' : `${Math.ceil(bytes / 1e6)} MB`) },
    {
      title: 'STATE',
      cell: ({ damage }) => (damage === undefined ? (verified ? 'intact' : 'saved') : `damaged: ${damage}`),
    },
  ]
  return renderTable(columns, lines)
}
