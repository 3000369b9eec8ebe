/** Builds an image that Warren knows how to make. */
import { type BuildOptions, buildOnce, findNewer } from './build.ts'
import { findImage, type Image, storeRoot } from './image.ts'
import { checkImageName, type Store } from './layout.ts'
import { RECIPES } from './recipes.ts'
import { requireRoot, requireTools } from './tools.ts'

/** Gives it as it is when it is there; else builds it, or waits for whoever is building it. */
export async function ensureImage(store: Store, name: string, options: BuildOptions = {}): Promise<Image> {
  checkImageName(name)
  const find = () => findImage(store, name)
  return (await find()) ?? buildImage(store, name, options, find)
}

/** Builds it also when it is there, with the packages of today. Sandboxes keep what they started from. */
export async function rebuildImage(store: Store, name: string, options: BuildOptions = {}): Promise<Image> {
  checkImageName(name)
  return buildImage(store, name, options, await findNewer(() => findImage(store, name)))
}

async function buildImage(
  store: Store,
  name: string,
  options: BuildOptions,
  find: () => Promise<Image | undefined>,
): Promise<Image> {
  const recipe = RECIPES[name]
  if (!recipe) {
    const known = Object.keys(RECIPES).join(' and ')
    throw new Error(`only ${known} are built here; bring ${name} with: warren images import SOURCE --name ${name}`)
  }
  return buildOnce(store, name, options, find, async (build) => {
    requireRoot(`building ${name}`)
    requireTools('mmdebstrap', 'mke2fs', 'e2fsck', 'setpriv', 'unshare', ...recipe.tools)
    const startedAt = Date.now()
    const root = await recipe.make(build)
    return storeRoot(store, build, { name, root, source: recipe.source, startedAt })
  })
}
