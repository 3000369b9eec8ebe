/**
 * Removes superseded root file systems and kernels from the image cache when the host agent starts. A base has a hard
 * link to its image, or a copy, so no sandbox needs the one in the cache. The kernel of a base stays, because its guests
 * may load modules of it later. What another Warren on this machine uses is open in one of its processes, and files that
 * are open stay: root file systems in QEMU, the kernel in its host agent.
 */
import { open, readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import type { Deps } from './deps.ts'

export async function pruneImages(
  deps: Pick<Deps, 'config' | 'images' | 'kernel' | 'log' | 'stopping'>,
): Promise<void> {
  await holdOpen(deps.kernel.vmlinuz, deps.stopping)
  try {
    const kernels = new Set([deps.kernel.digest, ...(await listBaseKernels(path.join(deps.config.dataDir, 'bases')))])
    const removed = await deps.images.prune(({ digest }) => kernels.has(digest))
    if (removed.length > 0) deps.log.info({ removed }, 'removed superseded images')
  } catch (error) {
    // They only take up space, so the host agent starts regardless.
    deps.log.warn({ err: error }, 'failed to remove superseded images')
  }
}

/** This host agent boots bases with it until it stops. */
async function holdOpen(file: string, until: AbortSignal): Promise<void> {
  const handle = await open(file, 'r')
  until.addEventListener('abort', () => void handle.close(), { once: true })
}

async function listBaseKernels(folder: string): Promise<string[]> {
  const bases = await readdir(folder).catch(() => [])
  const manifests = bases.map(async (base): Promise<string> => {
    const text = await readFile(path.join(folder, base, 'manifest.json'), 'utf8').catch(() => '{}')
    return (JSON.parse(text) as { kernel?: string }).kernel ?? ''
  })
  return Promise.all(manifests)
}
