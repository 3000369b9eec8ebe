/** Takes an image away, unless somebody needs it. */
import { readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { listFailed } from './build.ts'
import { findImage, type Image } from './image.ts'
import { checkImageName, folderOf, pathOf, ROOT_FILE, type Store } from './layout.ts'
import { tryLock } from './lock.ts'
import { findNamed, listNames, unlinkName, withRoots } from './names.ts'

/** Knows of sandboxes that need an image and are not running, such as paused ones. */
export type IsUsed = (image: Pick<Image, 'digest' | 'path'>) => boolean | Promise<boolean>

export async function removeImage(store: Store, name: string, isUsed: IsUsed): Promise<void> {
  checkImageName(name)
  const held = await tryLock(pathOf(store, 'locks', name))
  if (!held) throw new Error(`${name} is being built`)
  try {
    const image = await findImage(store, name)
    if (!image) return await forget(store, name)
    if ((await isUsed(image)) || (await isOpen(image.path))) throw new Error(`${name} is in use by a sandbox`)
    await forget(store, name)
    await removeUnnamed(store, image.digest)
  } finally {
    await held.release()
  }
}

/** Roots that lost their name to a newer build, and that nobody needs any more. Gives their digests. */
export async function pruneRoots(store: Store, isUsed: IsUsed): Promise<string[]> {
  const removed: string[] = []
  for (const folder of await readdir(pathOf(store, 'roots'))) {
    const root = { digest: `sha256:${folder}`, path: pathOf(store, 'roots', folder, ROOT_FILE) }
    if ((await isUsed(root)) || (await isOpen(root.path))) continue
    if (await removeUnnamed(store, root.digest)) removed.push(root.digest)
  }
  return removed
}

/** Its name, and why building it failed. */
async function forget(store: Store, name: string): Promise<void> {
  const known = [...(await listNames(store)), ...(await listFailed(store)).keys()]
  if (!known.includes(name)) throw new Error(`there is no image ${name}`)
  await rm(pathOf(store, 'failed', name), { force: true })
  await unlinkName(store, name)
}

/** Another name may stand for the same content. */
async function removeUnnamed(store: Store, digest: string): Promise<boolean> {
  const doomed = pathOf(store, 'building', `removed-${folderOf(digest)}`)
  const isRemoved = await withRoots(store, async () => {
    const digests = await Promise.all((await listNames(store)).map((name) => findNamed(store, 'roots', name)))
    if (digests.includes(digest)) return false
    // Out of sight by one rename: what is left when we are killed here is a leftover like any other.
    await rename(pathOf(store, 'roots', folderOf(digest)), doomed)
    return true
  })
  await rm(doomed, { recursive: true, force: true })
  return isRemoved
}

/** Whether any process has it open; QEMU has, under whatever path. Only root sees all of them. */
async function isOpen(file: string): Promise<boolean> {
  const wanted = await stat(file).catch(() => undefined)
  if (!wanted) return false
  const pids = (await readdir('/proc')).filter((entry) => /^\d+$/.test(entry))
  for (const pid of pids) {
    const folder = path.join('/proc', pid, 'fd')
    for (const fd of await readdir(folder).catch(() => [])) {
      // it ended, or is not ours to see
      const seen = await stat(path.join(folder, fd)).catch(() => undefined)
      if (seen?.ino === wanted.ino && seen.dev === wanted.dev) return true
    }
  }
  return false
}
