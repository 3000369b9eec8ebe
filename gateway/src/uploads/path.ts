/** Paths inside an upload. They are unpacked in a sandbox, where a path must stay below the folder of the project. */
const BYTES_MAX = 512
const DEPTH_MAX = 32
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are what is looked for.
const CONTROL = /[\u0000-\u001f\u007f-\u009f]/

/** What is wrong with a path, or undefined. */
export function checkPath(path: string): string | undefined {
  if (path === '') return 'must not be empty'
  if (!path.isWellFormed()) return 'is not valid Unicode'
  if (Buffer.byteLength(path) > BYTES_MAX) return `must not be longer than ${BYTES_MAX} bytes`
  if (CONTROL.test(path)) return 'must not contain control characters'
  if (path.includes('\\')) return 'must not contain a backslash'
  if (path.startsWith('/')) return 'must be relative'
  if (/^[A-Za-z]:/.test(path)) return 'must not begin with a drive letter'
  const segments = path.split('/')
  if (segments.length > DEPTH_MAX) return `must not be deeper than ${DEPTH_MAX} directories`
  if (segments.some((one) => one === '' || one === '.' || one === '..'))
    return 'must not contain an empty, . or .. part'
  return undefined
}

/** Two paths with the same key are one file on some systems. */
export const pathKey = (path: string): string => path.normalize('NFC').toUpperCase().toLowerCase().normalize('NFC')
