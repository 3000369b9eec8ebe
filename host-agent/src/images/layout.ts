/**
 * Layout of the images folder in the cache directory, which all clones of the repository share:
 *
 *   roots/<digest>/       root.ext4 and manifest.json: a root file system, read-only, named by its content
 *   kernels/<digest>/     vmlinuz, modules/*.ko and manifest.json
 *   initramfs/<digest>    named by its content
 *   names/<name>          symbolic link to ../roots/<digest>, or for `kernel-<suite>` to ../kernels/<digest>
 *   building/<key>/       a build in progress (with @ for :, which tools take for a separator); the finished result is
 *                         synced and moved into place with one rename
 *   locks/<key>           locked with flock(2) while <key> is built; never removed, because two processes could then
 *                         hold different locks
 *   failed/<key>          the reason of the last failure
 *
 * A <key> is the name of an image, or of something else that is built once. A folder in building/ whose lock is free was
 * left by a killed process; the next start removes it.
 */
import { homedir } from 'node:os'
import path from 'node:path'

type Log = (details: object, text: string) => void

/** `cacheDir` is the cache directory of Warren, which has more than images. */
export type ImageCache = { cacheDir: string; log: { info: Log; warn: Log } }

export const FOLDERS = ['roots', 'kernels', 'initramfs', 'names', 'building', 'locks', 'failed'] as const
export type Folder = (typeof FOLDERS)[number]

export const ROOT_FILE = 'root.ext4'
export const KERNEL_FILE = 'vmlinuz'
export const MANIFEST_FILE = 'manifest.json'

/** Follows the same rules as the configuration of the host agent. */
export const readCacheDir = (env: NodeJS.ProcessEnv): string =>
  path.resolve(
    env.WARREN_CACHE_DIR || path.join(env.XDG_CACHE_HOME || path.join(env.HOME || homedir(), '.cache'), 'warren'),
  )

export const pathOf = (cache: Pick<ImageCache, 'cacheDir'>, folder: Folder, ...rest: string[]): string =>
  path.join(cache.cacheDir, 'images', folder, ...rest)

/** Such as `ubuntu:26.04`. The colon keeps it apart from the names of kernels. It is used as a file name. */
const IMAGE_NAME = /^[a-z0-9]([a-z0-9._-]{0,62}[a-z0-9])?:[a-zA-Z0-9_][a-zA-Z0-9._-]{0,63}$/

export const isImageName = (name: string): boolean => IMAGE_NAME.test(name)

export function checkImageName(name: string): void {
  if (isImageName(name)) return
  throw new Error(`${JSON.stringify(name)} is not an image name; use lower case and a tag, such as ubuntu:26.04`)
}

/** Without colons: in `oci:PATH:TAG` a colon in the path would be ambiguous. */
export const buildingFolder = (cache: Pick<ImageCache, 'cacheDir'>, key: string): string =>
  pathOf(cache, 'building', key.replaceAll(':', '@'))
export const keyOfBuilding = (folder: string): string => folder.replaceAll('@', ':')

/** Digests have the prefix `sha256:`; folder names do not. */
export const digestOf = (sha256: string): string => `sha256:${sha256}`
export const folderOf = (digest: string): string => digest.replace(/^sha256:/, '')
