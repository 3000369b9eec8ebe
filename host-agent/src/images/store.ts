/** The image store of this machine: root file systems of sandboxes, and the kernel and initramfs that boot them. */
import { type OnProgress, prepareFolders } from './build.ts'
import { ensureImage, rebuildImage } from './ensure.ts'
import type { GuestPrograms } from './guest-programs.ts'
import { findImage, type Image, type ImageManifest } from './image.ts'
import { type ImportRequest, importImage } from './import.ts'
import { ensureInitramfs, type Initramfs, sweepInitramfs } from './initramfs.ts'
import { ensureKernel, type Kernel, rebuildKernel } from './kernel.ts'
import { type ImageCache, readCacheDir } from './layout.ts'
import { listImages } from './list.ts'
import { type IsUsed, prune, removeImage } from './remove.ts'

export type { Image, ImageManifest, Initramfs, IsUsed, Kernel, OnProgress }
export { readCacheDir }

export type ImageStore = Awaited<ReturnType<typeof openImageStore>>

/** Also removes what killed builds left behind, and initramfs files that were not used for long. */
export async function openImageStore(cache: ImageCache) {
  await prepareFolders(cache)
  await sweepInitramfs(cache)
  return {
    ensureKernel: (onProgress?: OnProgress, signal?: AbortSignal) => ensureKernel(cache, { onProgress, signal }),
    rebuildKernel: (onProgress?: OnProgress, signal?: AbortSignal) => rebuildKernel(cache, { onProgress, signal }),
    ensureInitramfs: (kernel: Pick<Kernel, 'bootModules'>, programs: GuestPrograms) =>
      ensureInitramfs(cache, kernel, programs),
    ensure: (name: string, onProgress?: OnProgress, signal?: AbortSignal) =>
      ensureImage(cache, name, { onProgress, signal }),
    rebuild: (name: string, onProgress?: OnProgress, signal?: AbortSignal) =>
      rebuildImage(cache, name, { onProgress, signal }),
    import: (request: ImportRequest, onProgress?: OnProgress, signal?: AbortSignal) =>
      importImage(cache, request, { onProgress, signal }),
    find: (name: string) => findImage(cache, name),
    list: () => listImages(cache),
    remove: (name: string, isUsed: IsUsed) => removeImage(cache, name, isUsed),
    prune: (isUsed: IsUsed) => prune(cache, isUsed),
  }
}
