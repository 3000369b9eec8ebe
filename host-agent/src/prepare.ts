/**
 * Prepares what creates will need. Order of events:
 *
 *   1. Before the host agent is ready, the base of the default shape, so that the first create does not wait for a boot.
 *   2. In the background: other bases of the common shapes, as far as they exist here or in another data directory.
 *   3. The images that are built in the background.
 *   4. When the machine is idle (prepare-when-idle.ts): the bases of WARREN_PREPARE_SHAPES, for all of these images.
 */
import { errorText } from '@warren/kit/error-text'
import { findShape } from '@warren/protocol'
import { type Base, readBase } from './bases/base.ts'
import { ensureBase, ensureBaseInBackground, findBase } from './bases/ensure.ts'
import { describeBase, type WantedBase } from './bases/key.ts'
import type { Deps } from './deps.ts'
import { findObstacle, measureMachine } from './idle.ts'
import { prepareWhenIdle } from './prepare-when-idle.ts'

/** The one of the examples in the start message and the README. */
const DEFAULT_SHAPE = 's-1vcpu-1gb'
/** How many pooled VMMs of the default image these shapes always have. */
const POOLED: Readonly<Record<string, number>> = { [DEFAULT_SHAPE]: 2, 's-1vcpu-256mb': 1, 's-2vcpu-2gb': 1 }

type Prepared = { name: string; shape: string; wanted: WantedBase }

/**
 * Part of the start on a new data directory, and after an upgrade. An existing base is left to `prepareAll`, which compares
 * it with its checksums in the background.
 */
export async function prepareFirstBase(deps: Deps, reportProgress: (text: string) => void): Promise<void> {
  const [first] = await describeBases(deps, [deps.config.defaultRootfs], [DEFAULT_SHAPE])
  if (!first || (await readBase(deps, first.wanted.key))) return
  reportProgress(`first base of ${first.name}`)
  const { image, shape, diskMib } = first.wanted
  try {
    setPoolMinimum(deps, first, (await ensureBase(deps, image, shape, diskMib)).base)
  } catch (error) {
    if (!deps.stopping.aborted) deps.log.error({ err: error, shape: first.shape }, 'failed to build the first base')
  }
}

/** Settles when all is prepared or the host agent stops. Nothing it started continues after that. */
export async function prepareAll(deps: Deps, reportProgress: (text: string) => void): Promise<void> {
  for (const one of await describeBases(deps, [deps.config.defaultRootfs], Object.keys(POOLED))) {
    if (deps.stopping.aborted) return
    const base = await findBase(deps, one.wanted).catch((error) => reportFailure(deps, one, error))
    if (base) setPoolMinimum(deps, one, base)
  }
  for (const name of deps.config.backgroundImages) {
    if (deps.stopping.aborted) return
    await buildImage(deps, name, reportProgress)
  }
  await prepareShapes(deps)
}

async function prepareShapes(deps: Deps): Promise<void> {
  const { defaultRootfs, backgroundImages, prepareShapes } = deps.config
  const missing: Prepared[] = []
  const names = new Set([defaultRootfs, ...backgroundImages])
  for (const one of await describeBases(deps, [...names], prepareShapes)) {
    if (deps.stopping.aborted) return
    if (!(await findBase(deps, one.wanted).catch(() => undefined))) missing.push(one)
  }
  await prepareWhenIdle(missing, {
    findObstacle: async ({ wanted }) =>
      deps.config.prepareAtOnce ? undefined : findObstacle(await measureMachine(deps), wanted.shape.mem_mib),
    async prepare(one) {
      const base = await ensureBaseInBackground(deps, one.wanted)
      if (base) setPoolMinimum(deps, one, base)
    },
    onFailure: (one, error) => void reportFailure(deps, one, error),
    onWait: (why) => deps.log.debug({ why, bases: missing.length }, 'bases are prepared when the machine is idle'),
    signal: deps.stopping,
  })
}

async function buildImage(deps: Deps, name: string, reportProgress: (text: string) => void): Promise<void> {
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

/** Without images that are not on this host. The bases of all shapes of one image come before those of the next. */
async function describeBases(deps: Deps, names: readonly string[], shapes: readonly string[]): Promise<Prepared[]> {
  const found: Prepared[] = []
  for (const name of names) {
    const image = await deps.images.find(name)
    for (const id of image ? shapes : []) {
      const shape = findShape(id)!
      const wanted = describeBase(deps, image!, shape, Math.max(shape.default_disk_mib, image!.minDiskMib))
      // Two shapes that differ in their CPU limit only have the same base.
      if (!found.some((other) => other.wanted.key === wanted.key)) found.push({ name, shape: id, wanted })
    }
  }
  return found
}

function setPoolMinimum({ config, pool }: Deps, { name, shape }: Prepared, base: Base): void {
  const minimum = name === config.defaultRootfs ? POOLED[shape] : undefined
  if (minimum !== undefined) pool.setMinimum(base, minimum)
}

/** The next create that needs the base tries again. */
function reportFailure(deps: Deps, { name, shape }: Prepared, error: unknown): undefined {
  if (deps.stopping.aborted) return
  deps.log.error({ err: error, image: name, shape }, 'failed to prepare a base ahead of its first create')
}
