/** The shapes for which the base of a template is booted before it is ready. */
import { findShape, type HostBuildBody, SHAPES } from '@warren/protocol'

/** What is wrong with the operator's list, or undefined. */
export function checkTemplateShapes(ids: string[]): string | undefined {
  const unknown = ids.find((id) => findShape(id) === undefined)
  if (unknown === undefined) return undefined
  return `must contain shapes only, not "${unknown}"; known are ${SHAPES.map(({ id }) => id).join(', ')}`
}

export const basesOf = (shapeIds: readonly string[]): HostBuildBody['bases'] =>
  shapeIds.flatMap((id) => {
    const shape = findShape(id)
    return shape ? [{ vcpu: shape.vcpu, mem_mib: shape.mem_mib, disk_mib: shape.default_disk_mib }] : []
  })
