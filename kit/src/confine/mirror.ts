/**
 * Copies of files that only root can read, or that are replaced while a service runs: the keys and certificates that
 * settings name, `resolv.conf` and `hosts`. The service reads the copies, which are in a folder with nothing else.
 *
 * A file is copied when the mirror opens, and again within two seconds when it has changed, by a rename, so that the
 * service sees the old or the new content. If the original disappears, the copy stays.
 */
import { constants } from 'node:fs'
import { chmod, chown, mkdir, open, rename, rm } from 'node:fs/promises'
import path from 'node:path'
import type { ServiceUser } from './services.ts'

export type Mirror = { folder: string; files: readonly string[]; close(): Promise<void> }

/** Names of hosts are looked up with these. */
export const MIRRORED_SYSTEM_FILES = ['/etc/resolv.conf', '/etc/hosts']

const CHECK_EVERY_MS = 2_000
/** A file that a setting names by mistake, such as a disk, must not fill the machine. */
const FILE_MAX_BYTES = 16 * 2 ** 20

/** Absolute paths, of which some may not exist. `ofServices` are in folders of other services, who could put links there. */
export type MirroredFiles = { files: readonly string[]; ofServices?: readonly string[] }

/** `folder` must belong to this mirror alone. */
export async function openMirror(
  user: ServiceUser,
  folder: string,
  { files, ofServices = [] }: MirroredFiles,
): Promise<Mirror> {
  await rm(folder, { recursive: true, force: true })
  await mkdir(folder, { recursive: true, mode: 0o700 })
  await giveGroup(user, folder)
  const versions = new Map<string, string>()
  const refresh = async () => {
    for (const file of files) await refreshFile(user, folder, file, versions)
    for (const file of ofServices) await refreshFile(user, folder, file, versions, constants.O_NOFOLLOW)
  }
  await refresh()
  let running = Promise.resolve()
  const timer = setInterval(() => {
    running = running.then(refresh).catch(() => {}) // Tried again at the next tick.
  }, CHECK_EVERY_MS).unref()
  return {
    folder,
    files: [...files, ...ofServices].filter((file) => versions.has(file)),
    async close() {
      clearInterval(timer)
      await running
      await rm(folder, { recursive: true, force: true })
    },
  }
}

async function refreshFile(
  user: ServiceUser,
  folder: string,
  file: string,
  versions: Map<string, string>,
  openFlags = 0,
): Promise<void> {
  const source = await open(file, constants.O_RDONLY | constants.O_NONBLOCK | openFlags).catch(
    (error: NodeJS.ErrnoException) => {
      if (error.code === 'ENOENT') return undefined
      throw new Error(`failed to read ${file} for ${user.service}`, { cause: error })
    },
  )
  if (source === undefined) return
  try {
    const found = await source.stat({ bigint: true })
    if (!found.isFile()) throw new Error(`${file} is not a file`)
    const version = `${found.dev} ${found.ino} ${found.mtimeNs} ${found.size}`
    if (versions.get(file) === version) return
    if (found.size > FILE_MAX_BYTES) throw new Error(`${file} is larger than ${FILE_MAX_BYTES} bytes`)
    await writeCopy(user, folder, path.join(folder, file), await source.readFile())
    versions.set(file, version)
  } finally {
    await source.close()
  }
}

/** Some programs refuse keys and password files that others can read, so the copy belongs to the service alone. */
async function writeCopy(user: ServiceUser, folder: string, copy: string, content: Buffer): Promise<void> {
  for (const parent of foldersBetween(folder, path.dirname(copy))) {
    await mkdir(parent, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== 'EEXIST') throw error
    })
    await giveGroup(user, parent)
  }
  const target = await open(`${copy}.new`, 'w', 0o400)
  try {
    await target.writeFile(content)
    await target.chown(user.uid, user.gid)
  } finally {
    await target.close()
  }
  await rename(`${copy}.new`, copy)
}

/** The service can enter the folder, but not change it. */
async function giveGroup(user: ServiceUser, folder: string): Promise<void> {
  await chown(folder, 0, user.gid)
  await chmod(folder, 0o750)
}

/** From the folder inside `top` down to `bottom`. */
function foldersBetween(top: string, bottom: string): string[] {
  const parts = path
    .relative(top, bottom)
    .split('/')
    .filter((part) => part !== '')
  return parts.map((_, index) => path.join(top, ...parts.slice(0, index + 1)))
}
