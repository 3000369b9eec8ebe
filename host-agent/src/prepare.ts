/** Builds in the background, one at a time, what creates will need: bases of the default image, then the other images. */
import { readdir } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { findShape } from '@warren/protocol'
import { ensureBase } from './bases/ensure.ts'
import type { Deps } from './deps.ts'

/** The common shapes, and how many pooled VMMs each always has. Another shape gets its base at its first create. */
const COMMON_SHAPES = { 's-1vcpu-1gb': 2, 's-1vcpu-256mb': 1, 's-2vcpu-2gb': 1 }

/**
 * Part of the start on a data directory without bases: the first create must not wait until one is booted. Existing bases
 * are left to `prepareAll`, which compares them with their checksums in the background.
 */
export async function prepareFirstBase(deps: Deps, reportProgress: (text: string) => void): Promise<void> {
  const found = await readdir(path.join(deps.config.dataDir, 'bases')).catch(() => [])
  if (found.some((name) => !name.includes('.'))) return // With a suffix it is a build that was interrupted, or damaged.
  reportProgress(`first boot of ${deps.config.defaultRootfs}`)
  const [id, pooled] = Object.entries(COMMON_SHAPES)[0]!
  await prepareBase(deps, id, pooled)
}

/** Settles when all is built or the host agent stops. Nothing it started continues after that. */
export async function prepareAll(deps: Deps, reportProgress: (text: string) => void): Promise<void> {
  await prepareBases(deps)
  for (const name of deps.config.backgroundImages) {
    if (deps.stopping.aborted) return
    try {
      let isBuilt = false
      const onProgress = (text: string) => {
        isBuilt = true
        reportProgress(`${name}: ${text}`)
      }
      await deps.images.ensure(name, onProgress, deps.stopping)
      if (isBuilt) reportProgress(`${name}: ready`)
    } catch (error) {
      if (deps.stopping.aborted) return
      reportProgress(`failed to build ${name}: ${errorText(error)}`)
      deps.log.error({ err: error, image: name }, 'failed to build an image')
    }
  }
}

async function prepareBases(deps: Deps): Promise<void> {
  for (const [id, pooled] of Object.entries(COMMON_SHAPES)) await prepareBase(deps, id, pooled)
}

async function prepareBase(deps: Deps, id: string, pooled: number): Promise<void> {
  const image = await deps.images.find(deps.config.defaultRootfs)
  const shape = findShape(id)
  if (!image || !shape || deps.stopping.aborted) return
  try {
    const size = { vcpu: shape.vcpu, mem_mib: shape.mem_mib }
    const { base } = await ensureBase(deps, image, size, shape.default_disk_mib)
    deps.pool.setMinimum(base, pooled)
  } catch (error) {
    if (!deps.stopping.aborted)
      deps.log.error({ err: error, shape: id }, 'failed to build a base ahead of its first create')
  }
}
