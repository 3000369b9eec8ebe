/**
 * Where things lie in the cache, which clones of the repository share, under images/:
 *
 *   roots/<digest>/       root.ext4 and manifest.json: a root filesystem, read-only, named by its content
 *   kernels/<digest>/     vmlinuz, modules/*.ko and manifest.json
 *   initramfs/<digest>    named by what went into it
 *   names/<name>          a symbolic link to ../roots/<digest>, or for `kernel-<suite>` to ../kernels/<digest>
 *   building/<key>/       what is being made (with @ for :, which tools take for a separator); it appears elsewhere by
 *                         one rename when it is whole and synced
 *   locks/<key>           flock(2)ed by whoever builds <key>; never removed, since that would split the lock in two
 *   failed/<key>          why the last try failed
 *
 * A <key> is the name of an image or of what else is built once. Whatever lies in building/ under a free lock was left
 * behind by a process that was killed, and goes at the next start.
 */
import { homedir } from 'node:os'
import path from 'node:path'

type Say = (details: object, text: string) => void

/** `cacheDir` is Warren's, for more than images; `log` hears what nobody waits for. */
export type Store = { cacheDir: string; log: { info: Say; warn: Say } }

export const FOLDERS = ['roots', 'kernels', 'initramfs', 'names', 'building', 'locks', 'failed'] as const
export type Folder = (typeof FOLDERS)[number]

export const ROOT_FILE = 'root.ext4'
export const KERNEL_FILE = 'vmlinuz'
export const MANIFEST_FILE = 'manifest.json'

/** By the same rules as the host agent's configuration. */
export const readCacheDir = (env: NodeJS.ProcessEnv): string =>
  path.resolve(
    env.WARREN_CACHE_DIR || path.join(env.XDG_CACHE_HOME || path.join(env.HOME || homedir(), '.cache'), 'warren'),
  )

export const pathOf = (store: Pick<Store, 'cacheDir'>, folder: Folder, ...rest: string[]): string =>
  path.join(store.cacheDir, 'images', folder, ...rest)

/** A catalog name such as `ubuntu:26.04`. It is a file name as well, and never one of the kernels' (no colon there). */
const IMAGE_NAME = /^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$/

export const isImageName = (name: string): boolean => IMAGE_NAME.test(name)

export function checkImageName(name: string): void {
  if (isImageName(name)) return
  throw new Error(`${JSON.stringify(name)} is no image name: it is lower case with a tag, such as ubuntu:26.04`)
}

/** `oci:PATH:TAG` could not be told apart with a colon in the path. */
export const buildingFolder = (store: Pick<Store, 'cacheDir'>, key: string): string =>
  pathOf(store, 'building', key.replaceAll(':', '@'))
export const keyOfBuilding = (folder: string): string => folder.replaceAll('@', ':')

/** The digest of a folder's name: `:` is for people, the file system gets the bare number. */
export const digestOf = (sha256: string): string => `sha256:${sha256}`
export const folderOf = (digest: string): string => digest.replace(/^sha256:/, '')
