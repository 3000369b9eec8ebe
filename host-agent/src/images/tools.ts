/** The host tools that builds need. They are checked before a build starts, not in the middle of it. */
import { findTool, installCommand, toolEnv } from '../doctor/find-tool.ts'

const machine = { env: process.env, isRoot: process.getuid?.() === 0 }

/** PATH includes the system folders, which an ordinary user's PATH lacks. */
export const TOOL_ENV: NodeJS.ProcessEnv = { ...toolEnv(machine), LC_ALL: 'C.UTF-8' }

/** The Debian package of each tool. */
const PACKAGES = {
  'apt-get': 'apt',
  chroot: 'coreutils',
  debugfs: 'e2fsprogs',
  'dpkg-deb': 'dpkg',
  e2fsck: 'e2fsprogs',
  mke2fs: 'e2fsprogs',
  mmdebstrap: 'mmdebstrap',
  npm: 'npm',
  'qemu-system-x86_64': 'qemu-system-x86',
  setpriv: 'util-linux',
  skopeo: 'skopeo',
  tar: 'tar',
  umoci: 'umoci',
  unshare: 'util-linux',
  xz: 'xz-utils',
} as const

export type ToolName = keyof typeof PACKAGES

export function requireTools(...names: ToolName[]): void {
  const missing = names.filter((name) => findTool(machine, name) === undefined)
  if (missing.length === 0) return
  const packages = [...new Set(missing.map((name) => PACKAGES[name]))].join(' ')
  throw new Error(`${missing.join(' and ')} not found; install with: ${installCommand(machine, packages)}`)
}

/** The files of an image belong to several users, and only root can create them. */
export function requireRoot(what: string): void {
  if (!machine.isRoot) throw new Error(`${what} needs root, because the files of an image belong to several users`)
}
