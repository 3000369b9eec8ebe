/** Names are symbolic links. One rename gives a name new content, so readers see either the old or the new. */
import { lstat, readdir, readlink, rename, rm, symlink } from 'node:fs/promises'
import path from 'node:path'
import { syncFolder } from '@warren/kit/files'
import type { Build } from './build.ts'
import { digestOf, type Folder, folderOf, type ImageCache, pathOf } from './layout.ts'
import { lock } from './lock.ts'

export type Content = Extract<Folder, 'roots' | 'kernels'>

/** The digest of the content that a name refers to. */
export async function findDigest(cache: ImageCache, content: Content, name: string): Promise<string | undefined> {
  const target = await readlink(pathOf(cache, 'names', name)).catch(() => undefined)
  if (target === undefined) return undefined
  const folder = path.resolve(pathOf(cache, 'names'), target)
  if (path.dirname(folder) !== pathOf(cache, content)) return undefined
  // The content may have been removed manually.
  const exists = await lstat(folder).then(
    () => true,
    () => false,
  )
  return exists ? digestOf(path.basename(folder)) : undefined
}

/** Content without a name is removed, so adding content and naming it happens under this lock. */
export async function withContentLock<T>(cache: ImageCache, work: () => Promise<T>): Promise<T> {
  const held = await lock(pathOf(cache, 'locks', 'roots'), () => {})
  try {
    return await work()
  } finally {
    await held.release()
  }
}

export async function linkName(
  cache: ImageCache,
  build: Build,
  content: Content,
  name: string,
  digest: string,
): Promise<void> {
  const link = path.join(build.folder, '.link')
  await symlink(path.join('..', content, folderOf(digest)), link)
  await rename(link, pathOf(cache, 'names', name))
  await syncFolder(pathOf(cache, 'names'))
}

export async function unlinkName(cache: ImageCache, name: string): Promise<void> {
  await rm(pathOf(cache, 'names', name), { force: true })
  await syncFolder(pathOf(cache, 'names'))
}

export const listNames = (cache: ImageCache): Promise<string[]> => readdir(pathOf(cache, 'names'))
