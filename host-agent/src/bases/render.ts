/** Prints the list of bases as a table. */
import { type Column, renderTable } from '@warren/kit/table'
import { type HostBase, SHAPES } from '@warren/protocol'

export function renderBases(bases: readonly HostBase[]): string {
  if (bases.length === 0) return 'There are no bases.\n'
  const columns: Column<HostBase>[] = [
    { title: 'IMAGE', cell: ({ image = '-' }) => image },
    { title: 'SHAPE', cell: renderShape },
    { title: 'DISK', align: 'right', cell: ({ disk_mib }) => `${disk_mib} MiB` },
    { title: 'STATE', cell: ({ state, progress }) => (progress === undefined ? state : `${state}: ${progress}`) },
    { title: 'SIZE', align: 'right', cell: ({ size_bytes }) => `${Math.ceil(size_bytes / 1e6)} MB` },
    { title: 'SANDBOXES', align: 'right', cell: ({ vms }) => `${vms}` },
    { title: 'MADE', cell: ({ made_at = '-' }) => made_at },
  ]
  return renderTable(columns, bases)
}

/** Shapes that differ in their CPU limit only have the same base. */
export function renderShape({ vcpu, mem_mib }: { vcpu: number; mem_mib: number }): string {
  const names = SHAPES.filter((shape) => shape.vcpu === vcpu && shape.mem_mib === mem_mib).map(({ id }) => id)
  return names.length === 0 ? `${vcpu} vCPU, ${mem_mib} MiB` : names.join(', ')
}
