/** Running a command as a user who is not root, for test runs as root. */
import { execFileSync } from 'node:child_process'
import { ROOT } from './instance.ts'

export const ORDINARY_UID = 65_534

/** The words in front of a command line. */
export const AS_ORDINARY_USER = [
  'setpriv',
  '--reuid',
  `${ORDINARY_UID}`,
  '--regid',
  `${ORDINARY_UID}`,
  '--clear-groups',
]

/** The reason to skip where only root can read the checkout, for example below /root; or false. */
export function cannotReadCheckout(): string | false {
  if (process.getuid?.() !== 0) return false
  const [command, ...args] = [...AS_ORDINARY_USER, process.execPath, '-e', `fs.readdirSync('${ROOT}/warren/src')`]
  try {
    execFileSync(command!, args, { stdio: 'ignore' })
    return false
  } catch {
    return `only root can read ${ROOT}`
  }
}
