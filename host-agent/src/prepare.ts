/** Builds in the background, one at a time, what creates will need: bases of the default image, then the other images. */
import { errorText } from '@warren/kit/error-text'
import { findShape } from '@warren/protocol'
import { ensureBase } from './bases/ensure.ts'
import type { Deps } from './deps.ts'

/** The common shapes, and how many pooled VMMs each always has. Another shape gets its base at its first create. */
const COMMON_SHAPES = { 's-1vcpu-1gb': 2, 's-1vcpu-256mb': 1, 's-2vcpu-2gb': 1 }

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
  const image = await deps.images.find(deps.config.defaultRootfs)
  if (!image) return
  for (const [id, pooled] of Object.entries(COMMON_SHAPES)) {
    const shape = findShape(id)
    if (!shape || deps.stopping.aborted) continue
    try {
      const size = { vcpu: shape.vcpu, mem_mib: shape.mem_mib }
      deps.pool.setMinimum(await ensureBase(deps, image, size, shape.default_disk_mib), pooled)
    } catch (error) {
      if (!deps.stopping.aborted)
        deps.log.error({ err: error, shape: id }, 'failed to build a base ahead of its first create')
    }
  }
}
