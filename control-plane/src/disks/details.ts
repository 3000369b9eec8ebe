/** What a sandbox says about the files on its mounts, for its owner: cleaned texts, and a warning that says what to do. */
import {
  type DiskAttachmentView,
  type HostMountDetails,
  MOUNT_DETAIL_EXAMPLES_MAX,
  type MountUnsaved,
} from '@warren/protocol'
import { cleanGuestText } from './guest-text.ts'

/** As stored by a pause (record-unsaved.ts): empty if the guest did not say what is left. */
export type StoredUnsaved = MountUnsaved | Record<string, never>
type DetailsView = Pick<DiskAttachmentView, 'unsaved' | 'conflicts' | 'conditional_writes' | 'warning'>

/** The host has limited their number and length; the database cannot store every character. */
export function cleanDetails({ unsaved, conflicts, conditional_writes }: HostMountDetails): HostMountDetails {
  const examples = <T>(list: readonly T[]): readonly T[] => list.slice(0, MOUNT_DETAIL_EXAMPLES_MAX)
  return {
    ...(unsaved && { unsaved: { ...unsaved, names: examples(unsaved.names).map(cleanGuestText) } }),
    ...(conflicts && {
      conflicts: {
        total: conflicts.total,
        files: examples(conflicts.files).map(({ path, kept_as }) => ({
          path: cleanGuestText(path),
          kept_as: cleanGuestText(kept_as),
        })),
      },
    }),
    ...(conditional_writes === undefined ? {} : { conditional_writes }),
  }
}

/** Of a running sandbox. */
export function viewDetails(reported: HostMountDetails): DetailsView {
  const { unsaved, conflicts, conditional_writes } = cleanDetails(reported)
  return {
    ...(unsaved && unsaved.files > 0 && { unsaved }),
    ...(conflicts && conflicts.total > 0 && { conflicts, warning: renderConflicts(conflicts) }),
    ...(conditional_writes === undefined ? {} : { conditional_writes }),
  }
}

/** Of a sandbox that does not run. */
export function viewUnsaved(stored: StoredUnsaved | null): DetailsView {
  if (stored === null) return {}
  if (!isKnown(stored)) {
    const warning =
      'the sandbox did not answer before the pause: changes of files may not be in the bucket; resume it to save them'
    return { warning }
  }
  const files = stored.files === 1 ? 'changes of 1 file' : `changes of ${stored.files} files`
  return { unsaved: stored, warning: `${files} could not be saved before the pause; resume the sandbox to save them` }
}

const isKnown = (stored: StoredUnsaved): stored is MountUnsaved => 'files' in stored

function renderConflicts({ total, files: [first] }: NonNullable<HostMountDetails['conflicts']>): string {
  const count = total === 1 ? '1 file was' : `${total} files were`
  const example = first ? `: ${first.path} is kept as ${first.kept_as}` : ''
  return cleanGuestText(
    `${count} changed by others at the same time, and not overwritten${example}; compare the copies in the sandbox and write the result again`,
  )
}
