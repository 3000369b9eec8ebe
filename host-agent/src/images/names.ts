/** Names are symbolic links: one rename gives a name its new content, and readers see the old or the new. */
import { lstat, readdir, readlink, rename, rm, symlink } from 'node:fs/promises'
import path from 'node:path'
import { syncFolder } from '@warren/kit/files'
import type { Build } from './build.ts'
import { digestOf, type Folder, folderOf, pathOf, type Store } from './layout.ts'
import { lock } from './lock.ts'

export type Content = Extract<Folder, 'roots' | 'kernels'>

/** The digest that a name stands for. */
export async function findNamed(store: Store, content: Content, name: string): Promise<string | undefined> {
  const target = await readlink(pathOf(store, 'names', name)).catch(() => undefined)
  if (target === undefined) return undefined
  const folder = path.resolve(pathOf(store, 'names'), target)
  if (path.dirname(folder) !== pathOf(store, content)) return undefined
  // A name whose content was removed by hand is no name.
  const isThere = await lstat(folder).then(
    () => true,
    () => false,
  )
  return isThere ? digestOf(path.basename(folder)) : undefined
}

/** A root or kernel without a name is taken away: whoever puts one there and names it does both under this lock. */
export async function withContents<T>(store: Store, work: () => Promise<T>): Promise<T> {
  const held = await lock(pathOf(store, 'locks', 'roots'), () => {})
  try {
    return await work()
  } finally {
    await held.release()
  }
}

export async function linkName(
  store: Store,
  build: Build,
  content: Content,
  name: string,
  digest: string,
): Promise<void> {
  const fresh = path.join(build.folder, '.link')
  await symlink(path.join('..', content, folderOf(digest)), fresh)
  await rename(fresh, pathOf(store, 'names', name))
  await syncFolder(pathOf(store, 'names'))
}

export async function unlinkName(store: Store, name: string): Promise<void> {
  await rm(pathOf(store, 'names', name), { force: true })
  await syncFolder(pathOf(store, 'names'))
}

export const listNames = (store: Store): Promise<string[]> => readdir(pathOf(store, 'names'))
