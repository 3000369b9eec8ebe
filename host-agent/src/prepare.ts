/** Builds in the background, one at a time, what creates will need: bases of the default image, then the other images. */
import { errorText } from '@warren/kit/error-text'
import { findShape, type Shape } from '@warren/protocol'
import { ensureBase, hasBase } from './bases/ensure.ts'
import type { Deps } from './deps.ts'

/** The common shapes, and how many pooled VMMs each always has. Another shape gets its base at its first create. */
const COMMON_SHAPES = { 's-1vcpu-1gb': 2, 's-1vcpu-256mb': 1, 's-2vcpu-2gb': 1 }

/**
 * Part of the start on a new data directory, and after an upgrade: the first create must not wait until its base is booted.
 * An existing base is left to `prepareAll`, which compares it with its checksums in the background.
 */
export async function prepareFirstBase(deps: Deps, reportProgress: (text: string) => void): Promise<void> {
  const [id, pooled] = Object.entries(COMMON_SHAPES)[0]!
  const image = await deps.images.find(deps.config.defaultRootfs)
  const shape = findShape(id)!
  if (!image || (await hasBase(deps, image, sizeOf(shape), shape.default_disk_mib))) return
  reportProgress(`first boot of ${image.name}`)
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
    const { base } = await ensureBase(deps, image, sizeOf(shape), shape.default_disk_mib)
    deps.pool.setMinimum(base, pooled)
  } catch (error) {
    if (!deps.stopping.aborted)
      deps.log.error({ err: error, shape: id }, 'failed to build a base ahead of its first create')
  }
}

const sizeOf = ({ vcpu, mem_mib }: Shape) => ({ vcpu, mem_mib })
