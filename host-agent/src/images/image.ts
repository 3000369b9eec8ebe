/** A root filesystem that sandboxes can start from. */
import { chmod, mkdir, readFile, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type Build, place } from './build.ts'
import { packExt4 } from './ext4.ts'
import { hashFile } from './hash.ts'
import { folderOf, isImageName, MANIFEST_FILE, pathOf, ROOT_FILE, type Store } from './layout.ts'
import { findNamed, linkName, withContents } from './names.ts'

export type ImageManifest = {
  /** How it was made, for people: a suite, a reference, a file. */
  source: string
  created_at: string
  build_ms: number
}

export type Image = {
  name: string
  digest: string
  /** The ext4 file; never written to. */
  path: string
  /** What it takes on this machine's disk; the file is sparse. */
  sizeBytes: number
  /** An overlay must not be smaller than its base. */
  minDiskMib: number
  manifest: ImageManifest
}

export async function findImage(store: Store, name: string): Promise<Image | undefined> {
  if (!isImageName(name)) return undefined
  const digest = await findNamed(store, 'roots', name)
  if (digest === undefined) return undefined
  return readImage(store, name, digest).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined // removed between two looks
    throw error
  })
}

async function readImage(store: Store, name: string, digest: string): Promise<Image> {
  const folder = pathOf(store, 'roots', folderOf(digest))
  const file = path.join(folder, ROOT_FILE)
  const [text, { size, blocks }] = await Promise.all([readFile(path.join(folder, MANIFEST_FILE), 'utf8'), stat(file)])
  return {
    name,
    digest,
    path: file,
    sizeBytes: blocks * 512,
    minDiskMib: Math.ceil(size / 1024 ** 2),
    manifest: JSON.parse(text),
  }
}

/** Packs a finished root directory and gives it its name; the last steps of every build and import. */
export async function storeRoot(
  store: Store,
  build: Build,
  { name, root, source, startedAt }: { name: string; root: string; source: string; startedAt: number },
): Promise<Image> {
  const folder = path.join(build.folder, 'image')
  await mkdir(folder, { mode: 0o755 })
  const file = path.join(folder, ROOT_FILE)
  await packExt4(build, root, file)
  await chmod(file, 0o444)

  build.progress('computing its digest')
  const digest = await hashFile(file, build.signal)
  const now = Date.now()
  const manifest: ImageManifest = { source, created_at: new Date(now).toISOString(), build_ms: now - startedAt }
  await writeFile(path.join(folder, MANIFEST_FILE), JSON.stringify(manifest, null, 2))
  await withContents(store, async () => {
    await place(folder, pathOf(store, 'roots', folderOf(digest)))
    await linkName(store, build, 'roots', name, digest)
  })
  return readImage(store, name, digest)
}
