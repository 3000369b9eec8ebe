/** The uploaded files as the detector sees them: those below the folder that the settings name. */
import type { UploadContent } from '../../uploads/read-tar.ts'
import { PlanError } from '../plan.ts'

export type Project = {
  /** Relative to the upload; empty for its top. */
  folder: string
  has(path: string): boolean
  /** Undefined for a file that is absent, or too large to be what it is taken for. */
  text(path: string): string | undefined
  list(): string[]
}

/** Files that say what kind of project it is. Anything larger is something else. */
const TEXT_MAX_BYTES = 256 * 1024
const READ =
  /^(?:package\.json|requirements\.txt|pyproject\.toml|Pipfile|Cargo\.toml|go\.mod|\.dockerignore|\.?[Dd]ockerfile(?:\..*)?|.*\.py|.*\.go)$/

export const isReadByDetector = (path: string, bytes: number): boolean =>
  bytes <= TEXT_MAX_BYTES && READ.test(path.slice(path.lastIndexOf('/') + 1))

export function openProject({ paths, texts }: UploadContent, directoryPath: string | null): Project {
  const folder = directoryPath ?? ''
  const prefix = folder === '' ? '' : `${folder}/`
  if (prefix !== '' && ![...paths].some((path) => path.startsWith(prefix))) {
    throw new PlanError(`settings.directoryPath: the upload has no folder ${folder}`)
  }
  return {
    folder,
    has: (path) => paths.has(prefix + path),
    text: (path) => texts.get(prefix + path),
    list: () => [...paths].filter((path) => path.startsWith(prefix)).map((path) => path.slice(prefix.length)),
  }
}
