/** The host's tools that images are made with, looked for before a build starts rather than in the middle of it. */
import { findTool, installCommand, toolEnv } from '../doctor/find-tool.ts'

const machine = { env: process.env, isRoot: process.getuid?.() === 0 }

/** Finds tools where an ordinary user's PATH does not look. */
export const TOOL_ENV: NodeJS.ProcessEnv = { ...toolEnv(machine), LC_ALL: 'C.UTF-8' }

/** Debian's names of the packages that bring them. */
const PACKAGES = {
  'apt-get': 'apt',
  chroot: 'coreutils',
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
  throw new Error(`${missing.join(' and ')} not found: ${installCommand(machine, packages)}`)
}

/** The files of an image belong to many users: only root can make them so. */
export function requireRoot(what: string): void {
  if (!machine.isRoot) throw new Error(`${what} needs root: the files of an image belong to many users`)
}
