/** Removes images that are not in use. */
import { randomUUID } from 'node:crypto'
import { readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { listFailed } from './build.ts'
import { findImage, type Image } from './image.ts'
import { checkImageName, digestOf, folderOf, type ImageCache, KERNEL_FILE, pathOf, ROOT_FILE } from './layout.ts'
import { lock, tryLock } from './lock.ts'
import { type Content, findDigest, listNames, unlinkName, withContentLock } from './names.ts'

/** Tells whether an image is needed by something that does not have it open, such as a paused sandbox. */
export type IsUsed = (image: Pick<Image, 'digest' | 'path'>) => boolean | Promise<boolean>

export async function removeImage(cache: ImageCache, name: string, isUsed: IsUsed): Promise<void> {
  checkImageName(name)
  const held = await tryLock(pathOf(cache, 'locks', name))
  if (!held) throw new Error(`${name} is being built`)
  try {
    const image = await findImage(cache, name)
    if (!image) return await removeName(cache, name)
    if ((await isUsed(image)) || (await isOpen(image.path))) throw new Error(`${name} is in use by a sandbox`)
    await removeName(cache, name)
    await removeUnnamed(cache, 'roots', image.digest)
  } finally {
    await held.release()
  }
}

/**
 * Removes an image although it may be in use, for images that everything which uses them has linked. Also succeeds if there is
 * none.
 */
export async function removeLinkedImage(cache: ImageCache, name: string): Promise<void> {
  checkImageName(name)
  const held = await lock(pathOf(cache, 'locks', name), () => {})
  try {
    const digest = await findDigest(cache, 'roots', name)
    await rm(pathOf(cache, 'failed', name), { force: true })
    await unlinkName(cache, name)
    if (digest !== undefined) await removeUnnamed(cache, 'roots', digest)
  } finally {
    await held.release()
  }
  // Other locks stay for ever. Of these there would be one for each template that ever existed.
  await rm(pathOf(cache, 'locks', name), { force: true })
}

/** The file that a process has open while it uses the content. */
const MAIN_FILES: Record<Content, string> = { roots: ROOT_FILE, kernels: KERNEL_FILE }

/** Removes roots and kernels that a newer build replaced and that are not in use. Returns their digests. */
export async function prune(cache: ImageCache, isUsed: IsUsed): Promise<string[]> {
  const removed: string[] = []
  for (const content of ['roots', 'kernels'] as const) {
    const named = await listNamed(cache, content)
    for (const digest of (await readdir(pathOf(cache, content))).map(digestOf)) {
      const item = { digest, path: pathOf(cache, content, folderOf(digest), MAIN_FILES[content]) }
      if (named.includes(digest) || (await isUsed(item)) || (await isOpen(item.path))) continue
      if (await removeUnnamed(cache, content, digest)) removed.push(digest)
    }
  }
  return removed
}

/** Removes the name of an image and the reason of a failed build. */
async function removeName(cache: ImageCache, name: string): Promise<void> {
  const known = [...(await listNames(cache)), ...(await listFailed(cache)).keys()]
  if (!known.includes(name)) throw new Error(`there is no image ${name}`)
  await rm(pathOf(cache, 'failed', name), { force: true })
  await unlinkName(cache, name)
}

/** Another name may refer to the same content; then nothing is removed. */
async function removeUnnamed(cache: ImageCache, content: Content, digest: string): Promise<boolean> {
  const moved = pathOf(cache, 'building', `removed-${randomUUID()}`)
  const isRemoved = await withContentLock(cache, async () => {
    if ((await listNamed(cache, content)).includes(digest)) return false
    // Moved to building/ with one rename. If this process is killed here, the next start removes it from there.
    return await rename(pathOf(cache, content, folderOf(digest)), moved).then(() => true, unlessMissing)
  })
  await rm(moved, { recursive: true, force: true })
  return isRemoved
}

/** Two removals of the last two names both find that none is left. */
function unlessMissing(error: NodeJS.ErrnoException): false {
  if (error.code !== 'ENOENT') throw error
  return false
}

const listNamed = async (cache: ImageCache, content: Content): Promise<(string | undefined)[]> =>
  Promise.all((await listNames(cache)).map((name) => findDigest(cache, content, name)))

/** Whether any process, such as QEMU, has the file open, by whatever path. Only root sees all processes. */
async function isOpen(file: string): Promise<boolean> {
  const wanted = await stat(file).catch(() => undefined)
  if (!wanted) return false
  const pids = (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))
  for (const pid of pids) {
    const folder = path.join('/proc', pid, 'fd')
    for (const fd of await readdir(folder).catch(() => [])) {
      // The process exited, or may not be inspected.
      const seen = await stat(path.join(folder, fd)).catch(() => undefined)
      if (seen?.ino === wanted.ino && seen.dev === wanted.dev) return true
    }
  }
  return false
}
