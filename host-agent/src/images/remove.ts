/** Takes an image away, unless somebody needs it. */
import { readdir, rename, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { listFailed } from './build.ts'
import { findImage, type Image } from './image.ts'
import { checkImageName, digestOf, folderOf, KERNEL_FILE, pathOf, ROOT_FILE, type Store } from './layout.ts'
import { tryLock } from './lock.ts'
import { type Content, findNamed, listNames, unlinkName, withContents } from './names.ts'

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
    await removeUnnamed(store, 'roots', image.digest)
  } finally {
    await held.release()
  }
}

/** What opens to whoever uses it. */
const MAIN_FILES: Record<Content, string> = { roots: ROOT_FILE, kernels: KERNEL_FILE }

/** Roots and kernels that lost their name to a newer build, and that nobody needs any more. Gives their digests. */
export async function prune(store: Store, isUsed: IsUsed): Promise<string[]> {
  const removed: string[] = []
  for (const content of ['roots', 'kernels'] as const) {
    const named = await listNamed(store, content)
    for (const digest of (await readdir(pathOf(store, content))).map(digestOf)) {
      const thing = { digest, path: pathOf(store, content, folderOf(digest), MAIN_FILES[content]) }
      if (named.includes(digest) || (await isUsed(thing)) || (await isOpen(thing.path))) continue
      if (await removeUnnamed(store, content, digest)) removed.push(digest)
    }
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
async function removeUnnamed(store: Store, content: Content, digest: string): Promise<boolean> {
  const doomed = pathOf(store, 'building', `removed-${folderOf(digest)}`)
  const isRemoved = await withContents(store, async () => {
    if ((await listNamed(store, content)).includes(digest)) return false
    // Out of sight by one rename: what is left when we are killed here is a leftover like any other.
    await rename(pathOf(store, content, folderOf(digest)), doomed)
    return true
  })
  await rm(doomed, { recursive: true, force: true })
  return isRemoved
}

const listNamed = async (store: Store, content: Content): Promise<(string | undefined)[]> =>
  Promise.all((await listNames(store)).map((name) => findNamed(store, content, name)))

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
