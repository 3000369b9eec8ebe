/** Growing the disk of a running sandbox. */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'

/** Sizes that a resize accepts. A create accepts any size. */
export const RESIZE_DISK_MIB: readonly number[] = [10_240, 20_480, 30_720, 40_960, 51_200, 61_440]

export const SandboxResizeBody = Type.Object({
  disk_mib: Type.Integer({
    description: `New size: one of ${RESIZE_DISK_MIB.join(', ')}, larger than the current one.`,
  }),
})
export type SandboxResizeBody = Static<typeof SandboxResizeBody>

export const SandboxResizeView = Type.Object({ id: SandboxId, disk_mib: Type.Integer() })
export type SandboxResizeView = Static<typeof SandboxResizeView>

/** Error text for the field `disk_mib`, or undefined. A disk only grows because its filesystem is in use. */
export function checkResize(diskMib: number, currentDiskMib: number): string | undefined {
  if (!RESIZE_DISK_MIB.includes(diskMib)) return `must be one of ${RESIZE_DISK_MIB.join(', ')}`
  if (diskMib <= currentDiskMib) return `must be more than the current ${currentDiskMib}`
  return undefined
}
