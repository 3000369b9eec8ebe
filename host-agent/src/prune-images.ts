/**
 * Superseded roots and kernels leave the cache when a host agent starts. A base has its own name for its image (a hard
 * link, or a copy), so no sandbox misses the one in the cache. The kernel of a base stays: its guests may load modules
 * of it later. What another Warren on this machine needs is open in one of its processes: roots by QEMU, the kernel by
 * its host agent.
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
    // They cost room, nothing else: no reason not to start.
    deps.log.warn({ err: error }, 'could not remove superseded images')
  }
}

/** For as long as we run, bases are booted with it. */
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
