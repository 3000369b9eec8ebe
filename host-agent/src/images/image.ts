/** Images: the root file systems that sandboxes start from. */
import { chmod, mkdir, readFile, rename, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type Build, moveIntoPlace } from './build.ts'
import { packExt4 } from './ext4.ts'
import { hashFile } from './hash.ts'
import { folderOf, type ImageCache, isImageName, MANIFEST_FILE, pathOf, ROOT_FILE } from './layout.ts'
import { findDigest, linkName, withContentLock } from './names.ts'
import type { PackageFile } from './package-files.ts'

export type ImageManifest = {
  /** Where it came from, for display: a suite, a reference or a file. */
  source: string
  created_at: string
  build_ms: number
  /** The package files it was built from. Absent for imports, templates, and images of earlier versions. */
  packages?: PackageFile[]
}

/** What an image is made from. */
type NewImage = { name: string; source: string; startedAt: number; packages?: PackageFile[] }

export type Image = {
  name: string
  digest: string
  /** The ext4 file, which is never written to. */
  path: string
  /** Space used on the disk of this machine; the file is sparse. */
  sizeBytes: number
  /** The size of the file, because an overlay must not be smaller than its base. */
  minDiskMib: number
  manifest: ImageManifest
}

export async function findImage(cache: ImageCache, name: string): Promise<Image | undefined> {
  if (!isImageName(name)) return undefined
  const digest = await findDigest(cache, 'roots', name)
  if (digest === undefined) return undefined
  return readImage(cache, name, digest).catch((error: NodeJS.ErrnoException) => {
    if (error.code === 'ENOENT') return undefined // Removed meanwhile.
    throw error
  })
}

async function readImage(cache: ImageCache, name: string, digest: string): Promise<Image> {
  const folder = pathOf(cache, 'roots', folderOf(digest))
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

/** Packs a finished root directory and names it. These are the last steps of every build and import. */
export async function storeRoot(
  cache: ImageCache,
  build: Build,
  { root, ...image }: NewImage & { root: string },
): Promise<Image> {
  const packed = path.join(build.folder, 'packed')
  await packExt4(build, root, packed)
  return storeRootFile(cache, build, { ...image, file: packed })
}

/** The same for a root file system that is packed already. The file is in the folder of the build and is moved. */
export async function storeRootFile(
  cache: ImageCache,
  build: Build,
  { file: packed, name, source, startedAt, packages }: NewImage & { file: string },
): Promise<Image> {
  const folder = path.join(build.folder, 'image')
  await mkdir(folder, { mode: 0o755 })
  const file = path.join(folder, ROOT_FILE)
  await rename(packed, file)
  await chmod(file, 0o444)

  build.progress('computing the digest')
  const digest = await hashFile(file, build.signal)
  const now = Date.now()
  const manifest: ImageManifest = {
    ...{ source, created_at: new Date(now).toISOString(), build_ms: now - startedAt },
    ...(packages && { packages }),
  }
  await writeFile(path.join(folder, MANIFEST_FILE), JSON.stringify(manifest, null, 2))
  await withContentLock(cache, async () => {
    await moveIntoPlace(folder, pathOf(cache, 'roots', folderOf(digest)))
    await linkName(cache, build, 'roots', name, digest)
  })
  return readImage(cache, name, digest)
}
