/** The images of this machine: what sandboxes start from, with the kernel and initramfs that start them. */
import { type OnProgress, openFolders } from './build.ts'
import { ensureImage, rebuildImage } from './ensure.ts'
import { findImage, type Image, type ImageManifest } from './image.ts'
import { type ImportRequest, importImage } from './import.ts'
import { ensureInitramfs, type Initramfs, sweepInitramfs } from './initramfs.ts'
import { ensureKernel, type Kernel, rebuildKernel } from './kernel.ts'
import { readCacheDir, type Store } from './layout.ts'
import { listImages } from './list.ts'
import { type IsUsed, prune, removeImage } from './remove.ts'

export type { Image, ImageManifest, Initramfs, IsUsed, Kernel, OnProgress }
export { readCacheDir }

export type ImageStore = Awaited<ReturnType<typeof openImageStore>>

/** Removes what killed builds left behind and what nobody wants any more, in passing. */
export async function openImageStore(store: Store) {
  await openFolders(store)
  await sweepInitramfs(store)
  return {
    ensureKernel: (onProgress?: OnProgress, signal?: AbortSignal) => ensureKernel(store, { onProgress, signal }),
    rebuildKernel: (onProgress?: OnProgress, signal?: AbortSignal) => rebuildKernel(store, { onProgress, signal }),
    ensureInitramfs: (kernel: Pick<Kernel, 'bootModules'>, agentPath: string) =>
      ensureInitramfs(store, kernel, agentPath),
    ensure: (name: string, onProgress?: OnProgress, signal?: AbortSignal) =>
      ensureImage(store, name, { onProgress, signal }),
    rebuild: (name: string, onProgress?: OnProgress, signal?: AbortSignal) =>
      rebuildImage(store, name, { onProgress, signal }),
    import: (request: ImportRequest, onProgress?: OnProgress, signal?: AbortSignal) =>
      importImage(store, request, { onProgress, signal }),
    find: (name: string) => findImage(store, name),
    list: () => listImages(store),
    remove: (name: string, isUsed: IsUsed) => removeImage(store, name, isUsed),
    prune: (isUsed: IsUsed) => prune(store, isUsed),
  }
}
