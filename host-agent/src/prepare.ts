/** What is nice to have before anybody asks: bases of the default image, then the other images. One thing at a time. */
import { errorText } from '@warren/kit/text'
import { findShape } from '@warren/protocol'
import { ensureBase } from './bases/base.ts'
import type { Deps } from './deps.ts'

/** The shapes people start with, and how many bodies always wait for one; any other gets its base at its first create. */
const FIRST_SHAPES = { 's-1vcpu-1gb': 2, 's-1vcpu-256mb': 1, 's-2vcpu-2gb': 1 }

/** Settles when all is done or we stop; nothing it began outlives it. */
export async function prepareAll(deps: Deps, tell: (text: string) => void): Promise<void> {
  await prepareBases(deps)
  for (const name of deps.config.backgroundImages) {
    if (deps.stopping.aborted) return
    try {
      await deps.images.ensure(name, (text) => tell(`${name}: ${text}`), deps.stopping)
    } catch (error) {
      if (deps.stopping.aborted) return
      tell(`${name} could not be built: ${errorText(error)}`)
      deps.log.error({ err: error, image: name }, 'an image could not be built')
    }
  }
}

async function prepareBases(deps: Deps): Promise<void> {
  const image = await deps.images.find(deps.config.defaultRootfs)
  if (!image) return
  for (const [id, waiting] of Object.entries(FIRST_SHAPES)) {
    const shape = findShape(id)
    if (!shape || deps.stopping.aborted) continue
    try {
      const size = { vcpu: shape.vcpu, mem_mib: shape.mem_mib }
      deps.pool.keep(await ensureBase(deps, image, size, shape.default_disk_mib), waiting)
    } catch (error) {
      if (!deps.stopping.aborted) deps.log.error({ err: error, shape: id }, 'a base could not be built ahead')
    }
  }
}
