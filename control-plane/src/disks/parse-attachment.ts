/** Where and how a disk is to be mounted. Create and attach share it. */
import {
  checkDiskSubPath,
  checkMountPath,
  containsPath,
  type DiskAttachBody,
  normalisePath,
  normaliseSubPath,
} from '@warren/protocol'

export type NewAttachment = {
  /** Id or name. It is resolved in the transaction that inserts the attachment. */
  disk: string
  mountPath: string
  subPath: string
  readOnly: boolean
}

/** The field that is not valid, and why. */
export function checkAttachment({ mount_path, sub_path }: DiskAttachBody): [field: string, fault: string] | undefined {
  const pathFault = checkMountPath(mount_path)
  if (pathFault) return ['mount_path', pathFault]
  const subPathFault = checkDiskSubPath(sub_path ?? '')
  return subPathFault ? ['sub_path', subPathFault] : undefined
}

/** The body must be valid. */
export const parseAttachment = ({ disk_id, mount_path, sub_path, read_only }: DiskAttachBody): NewAttachment => ({
  disk: disk_id,
  mountPath: normalisePath(mount_path),
  subPath: normaliseSubPath(sub_path ?? ''),
  readOnly: read_only ?? false,
})

/** A mount inside of another would need a directory in the bucket of the other, and would depend on it. */
export const overlap = (one: string, other: string): boolean => containsPath(one, other) || containsPath(other, one)
