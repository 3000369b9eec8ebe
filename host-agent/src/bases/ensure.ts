/**
 * Finds a base in the data directory, imports it from those that other data directories built (shared.ts), or builds it
 * (build.ts).
 */
import { existsSync } from 'node:fs'
import { rename, rm } from 'node:fs/promises'
import { isTemplateImage } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { hasOperatorSettings } from '../guest/operator-settings.ts'
import type { Image } from '../images/store.ts'
import type { Shape } from '../vmm/args.ts'
import { type Base, damagedKey, locateBase, readBase } from './base.ts'
import { buildBase } from './build.ts'
import { type Build, Builds } from './builds.ts'
import { findDamage } from './check.ts'
import { describeBase, type WantedBase } from './key.ts'
import { importSharedBase, lockSharedBase, publishSharedBase, tryLockSharedBase } from './shared.ts'

/** `isBooted`: it did not exist before. */
export type EnsuredBase = { base: Base; isBooted: boolean }

/** Undefined: it does not exist, and the caller did not want it booted. */
const builds = new Builds<EnsuredBase | undefined>()

/** Those that are being built or looked for. */
export const listBuilds = (): Build[] => builds.list()

/** For a request. Concurrent callers share one build. */
export async function ensureBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Promise<EnsuredBase> {
  const wanted = describeBase(deps, image, shape, diskMib)
  for (;;) {
    const ensured = await builds.run(wanted, { isBackground: false }, (build) => findOrBuild(deps, wanted, build))
    if (ensured) return ensured // Undefined from a caller that only looked for it.
  }
}

/** For no request yet. Rejects with `Yielded` if a request needs another base first. */
export async function ensureBaseInBackground(deps: Deps, wanted: WantedBase): Promise<Base | undefined> {
  const ensured = await builds.run(wanted, { isBackground: true }, (build) => {
    // What ends a build at a stop also ends one that yields.
    const stopping = AbortSignal.any([deps.stopping, build.yielding])
    return findOrBuild({ ...deps, stopping }, wanted, build)
  })
  return ensured?.base
}

/** Boots nothing, and does not wait for other data directories. */
export async function findBase(deps: Deps, wanted: WantedBase): Promise<Base | undefined> {
  const ensured = await builds.run(wanted, { isBackground: true }, async (build) => {
    build.progress = 'looking for it'
    const known = await findUsable(deps, wanted.key)
    if (known) return { base: known, isBooted: false }
    const lock = isShared(deps, wanted) ? await tryLockSharedBase(deps, wanted.key) : undefined
    try {
      const imported = lock && (await importUsable(deps, wanted.key))
      return imported && { base: imported, isBooted: false }
    } finally {
      await lock?.release()
    }
  })
  return ensured?.base
}

/**
 * What the operator sets for guests is in their memory from the start, and a proxy may have a password. The image of a template
 * belongs to its user and is in this data directory only.
 */
const isShared = (deps: Deps, { image }: WantedBase): boolean =>
  !hasOperatorSettings(deps.operatorSettings) && !isTemplateImage(image.name)

async function findOrBuild(deps: Deps, wanted: WantedBase, build: Build): Promise<EnsuredBase> {
  const { key } = wanted
  build.progress = 'looking for it'
  const known = await findUsable(deps, key)
  if (known) return { base: known, isBooted: false }
  build.progress = 'waiting for another Warren that builds it'
  const lock = isShared(deps, wanted) ? await lockSharedBase(deps, key) : undefined
  try {
    const imported = lock && (await importUsable(deps, key))
    if (imported) return { base: imported, isBooted: false }
    const base = await buildBase(deps, wanted, build)
    if (lock) await publishSharedBase(deps, key)
    return { base, isBooted: true }
  } finally {
    await lock?.release()
  }
}

const importUsable = async (deps: Deps, key: string): Promise<Base | undefined> =>
  (await importSharedBase(deps, key)) ? findUsable(deps, key) : undefined

/** Undefined if there is none. A damaged one is set aside first: sandboxes that were made from it report its damage. */
async function findUsable(deps: Deps, key: string): Promise<Base | undefined> {
  const known = await readBase(deps, key)
  const damage = known && (await findDamage(deps, known))
  if (known && damage === undefined) return known
  const { folder } = locateBase(deps, key)
  if (existsSync(folder)) {
    deps.log.error({ base: key, damage }, 'a base is damaged: set aside, building it again')
    const aside = locateBase(deps, damagedKey(key)).folder
    await rm(aside, { recursive: true, force: true })
    await rename(folder, aside)
  }
  return undefined
}
