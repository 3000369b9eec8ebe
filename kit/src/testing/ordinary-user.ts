/** Running a command as a user who is not root, for test runs as root. */
import { spawnSync } from 'node:child_process'
import { statSync } from 'node:fs'
import path from 'node:path'

export const ORDINARY_UID = 65_534

const ROOT = path.resolve(import.meta.dirname, '../../..')
const SETPRIV = ['setpriv', '--reuid', `${ORDINARY_UID}`, '--regid', `${ORDINARY_UID}`, '--clear-groups']

/**
 * For a checkout that only root can read, for example below /root: in a private mount namespace an empty folder hides the
 * closed one ($2), and an overlay, whose root is open, shows the checkout ($1) at its path. What the command writes to the
 * checkout is lost.
 */
const OPEN_CHECKOUT = `
  mount -t tmpfs -o mode=755 warren-open "$3"
  mkdir "$3/show" "$3/upper" "$3/work"
  mount -t overlay -o "lowerdir=$1,upperdir=$3/upper,workdir=$3/work" warren-open "$3/show"
  mount -t tmpfs -o mode=755 warren-open "$2"
  mkdir -p "$1"
  mount --move "$3/show" "$1"
  shift 3
  exec "$@"`

/** The words in front of a command line. Undefined without root, or where other users cannot be let into the checkout. */
export const AS_ORDINARY_USER: string[] | undefined = process.getuid?.() === 0 ? findPrefix() : undefined

function findPrefix(): string[] | undefined {
  const closed = findClosedFolder()
  // /mnt exists everywhere and is empty; the mount is visible to the command alone.
  const opened = ['unshare', '--mount', 'sh', '-ec', OPEN_CHECKOUT, 'sh', ROOT, closed ?? ROOT, '/mnt', ...SETPRIV]
  return [...(closed === undefined ? [SETPRIV] : []), opened].find(canRead)
}

/** The topmost folder on the way to the checkout that other users may not enter. */
function findClosedFolder(): string | undefined {
  const parts = ROOT.split('/')
  const folders = parts.map((_, index) => parts.slice(0, index + 1).join('/') || '/')
  return folders.find((folder) => (statSync(folder).mode & 0o005) !== 0o005)
}

function canRead([command, ...args]: string[]): boolean {
  const program = [process.execPath, '-e', 'fs.accessSync(process.argv[1])', import.meta.filename]
  return spawnSync(command!, [...args, ...program]).status === 0
}
