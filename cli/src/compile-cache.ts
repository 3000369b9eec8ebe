/**
 * The cache of compiled code, which halves the time until Warren is ready. Node stores a file for each path of a source file
 * and removes none, so without this the cache would grow with every clone, temporary checkout and version of Node.
 */
import { createHash } from 'node:crypto'
import { mkdir, readdir, rm, stat, utimes } from 'node:fs/promises'
import path from 'node:path'

/** A clone that is started again later needs about a second more, once. */
const UNUSED_MS = 7 * 24 * 60 * 60_000

/** Each clone has its own folder. */
export const compileCacheDir = (cacheDir: string, root: string): string =>
  path.join(cacheDir, 'compiled', createHash('sha256').update(root).digest('hex').slice(0, 16))

/** Removes what other versions of Node stored for this clone, and the folders of clones that were not started for a week. */
export async function pruneCompileCache(own: string, now = new Date()): Promise<void> {
  await mkdir(own, { recursive: true })
  await utimes(own, now, now) // When it was used last.
  const current = `${process.version}-${process.arch}-`
  for (const name of await readdir(own)) if (!name.startsWith(current)) await remove(path.join(own, name))

  const all = path.dirname(own)
  for (const name of await readdir(all)) {
    const folder = path.join(all, name)
    const usedAt = (await stat(folder).catch(() => undefined))?.mtimeMs // Undefined if another Warren removed it.
    if (usedAt !== undefined && now.getTime() - usedAt > UNUSED_MS) await remove(folder)
  }
}

const remove = (folder: string): Promise<void> => rm(folder, { recursive: true, force: true })
