/** Growing the disk of a running sandbox (spec 4.8; wire 10). */
import { type Static, Type } from 'typebox'
import { SandboxId } from './ids.ts'

/** A resize goes to one of these; a create may ask for any size. */
export const RESIZE_DISK_MIB: readonly number[] = [10_240, 20_480, 30_720, 40_960, 51_200, 61_440]

export const SandboxResizeBody = Type.Object({
  disk_mib: Type.Integer({ description: `One of ${RESIZE_DISK_MIB.join(', ')}, and more than now.` }),
})
export type SandboxResizeBody = Static<typeof SandboxResizeBody>

export const SandboxResizeView = Type.Object({ id: SandboxId, disk_mib: Type.Integer() })
export type SandboxResizeView = Static<typeof SandboxResizeView>

/** For the field `disk_mib`. A disk only grows: the file system is in use. */
export function checkResize(diskMib: number, currentDiskMib: number): string | undefined {
  if (!RESIZE_DISK_MIB.includes(diskMib)) return `must be one of ${RESIZE_DISK_MIB.join(', ')}`
  if (diskMib <= currentDiskMib) return `must be more than the current ${currentDiskMib}`
  return undefined
}
