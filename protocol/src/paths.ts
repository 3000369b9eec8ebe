/** Paths inside a guest. Each check returns an error text, or undefined for a valid path. */
import { utf8Length } from './utf8.ts'

/** PATH_MAX of Linux is 4096 bytes including the final NUL. */
export const PATH_MAX_BYTES = 4095

export function checkAbsolutePath(path: string): string | undefined {
  if (!path.startsWith('/')) return 'must be an absolute path'
  return checkSegments(path)
}

/** A prefix inside a bucket. Slashes at either end are ignored. */
export const checkSubPath = (subPath: string): string | undefined => checkSegments(subPath)

/** The canonical form, so that `/mnt/data` and `/mnt//data/` are the same mount. The path must be valid. */
export function normalisePath(path: string): string {
  return `/${segments(path).join('/')}`
}

/** Without slashes at either end; empty for the whole bucket. The path must be valid. */
export const normaliseSubPath = (subPath: string): string => subPath.replace(/^\/+|\/+$/g, '')

function checkSegments(path: string): string | undefined {
  if (path.includes('\0')) return 'must not contain a NUL character'
  if (path.split('/').includes('..')) return 'must not contain ".."'
  if (utf8Length(path) > PATH_MAX_BYTES) return `must not be longer than ${PATH_MAX_BYTES} bytes`
  return undefined
}

const segments = (path: string): string[] => path.split('/').filter((segment) => segment !== '' && segment !== '.')
