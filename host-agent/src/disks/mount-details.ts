/** What a guest says about one of its mounts, as far as its owner sees it. Its texts are cut to what the protocol allows. */
import {
  type GuestMount,
  type GuestMountsApplied,
  type HostMountDetails,
  type HostUnsavedMount,
  type HostVmMountsApplied,
  MOUNT_DETAIL_EXAMPLES_MAX,
  MOUNT_DETAIL_PATH_MAX_BYTES,
  MountId,
  truncateUtf8,
} from '@warren/protocol'
import { Value } from 'typebox/value'

export function toMountDetails(mount: GuestMount): HostMountDetails {
  const unsaved = findUnsaved(mount)
  const conflicts = findConflicts(mount)
  const conditionalWrites = findConditionalWrites(mount)
  return {
    ...(unsaved && { unsaved }),
    ...(conflicts && { conflicts }),
    ...(conditionalWrites === undefined ? {} : { conditional_writes: conditionalWrites }),
  }
}

const cut = (text: string): string => truncateUtf8(text, MOUNT_DETAIL_PATH_MAX_BYTES)

/** Agents before GUEST_PROTOCOL.MOUNT_DETAILS have it among the details of the mount program, without names. */
function findUnsaved({ unsaved, details }: GuestMount): HostMountDetails['unsaved'] {
  if (unsaved) return { ...unsaved, names: unsaved.names.slice(0, MOUNT_DETAIL_EXAMPLES_MAX).map(cut) }
  return details && { files: details.dirty_files, bytes: details.dirty_bytes, names: [] }
}

function findConflicts({ conflicts, conflicts_total, details }: GuestMount): HostMountDetails['conflicts'] {
  const found = conflicts ?? details?.problems.flatMap(({ path, kept }) => (kept ? [{ path, kept_as: kept }] : []))
  if (!found) return undefined
  const files = found.slice(0, MOUNT_DETAIL_EXAMPLES_MAX)
  return {
    total: conflicts_total ?? found.length,
    files: files.map(({ path, kept_as }) => ({ path: cut(path), kept_as: cut(kept_as) })),
  }
}

function findConditionalWrites({ conditional_writes, details }: GuestMount): boolean | undefined {
  if (conditional_writes !== undefined) return conditional_writes
  if (details?.conditions === 'honoured') return true
  return details?.conditions === 'ignored' || details?.conditions === 'refused' ? false : undefined
}

/** As the guest names them, where nothing else is known. */
export const listWritable = (reported: readonly GuestMount[]): string[] => {
  const ids = reported.filter(({ details }) => details?.read_only !== true).map(({ id }) => id)
  return [...new Set(ids)].filter((id) => Value.Check(MountId, id))
}

/** Of the mounts `ids`: those with unsaved files, and those of which the guest does not say it, as while their store is away. */
export function listUnsaved(ids: readonly string[], reported: readonly GuestMount[]): HostUnsavedMount[] {
  return ids.flatMap((id) => {
    const mount = reported.find((one) => one.id === id)
    const unsaved = mount && findUnsaved(mount)
    if (unsaved === undefined) return [{ id }]
    return unsaved.files > 0 ? [{ id, unsaved }] : []
  })
}

/**
 * What became of mounts that are no longer listed: of those that this process knew, and of those whose files an earlier request could
 * not save. A guest says the latter with every answer.
 */
export function listRemoved(
  gone: readonly string[],
  reported: GuestMountsApplied['removed'],
): HostVmMountsApplied['removed'] {
  const unsaved = new Map<string, number>()
  for (const { id, unsaved_files } of reported) unsaved.set(id, Math.max(unsaved.get(id) ?? 0, unsaved_files))
  const earlier = [...unsaved].filter(([id, files]) => files > 0 && Value.Check(MountId, id)).map(([id]) => id)
  return [...new Set([...gone, ...earlier])].map((id) => {
    const files = unsaved.get(id) ?? 0
    return { id, ...(files > 0 && { warning: renderUnsaved(id, files) }) }
  })
}

const renderUnsaved = (id: string, files: number): string =>
  `changes of ${files} ${files === 1 ? 'file' : 'files'} could not be saved; they are in /var/lib/warren/disks/${id} of the sandbox`
