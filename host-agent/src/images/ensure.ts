/** Builds the images for which Warren has a recipe. */
import { type BuildOptions, buildOnce, findNewer } from './build.ts'
import { findImage, type Image, storeRoot } from './image.ts'
import { checkImageName, type ImageCache } from './layout.ts'
import { RECIPES } from './recipes.ts'
import { requireRoot, requireTools } from './tools.ts'

/** Returns the image if it exists. Otherwise builds it, or waits for another process that is building it. */
export async function ensureImage(cache: ImageCache, name: string, options: BuildOptions = {}): Promise<Image> {
  checkImageName(name)
  const find = () => findImage(cache, name)
  return (await find()) ?? buildImage(cache, name, options, find)
}

/** Builds the image again with current packages. Existing sandboxes keep the image they started from. */
export async function rebuildImage(cache: ImageCache, name: string, options: BuildOptions = {}): Promise<Image> {
  checkImageName(name)
  return buildImage(cache, name, options, await findNewer(() => findImage(cache, name)))
}

async function buildImage(
  cache: ImageCache,
  name: string,
  options: BuildOptions,
  find: () => Promise<Image | undefined>,
): Promise<Image> {
  const recipe = RECIPES[name]
  if (!recipe) {
    const known = Object.keys(RECIPES).join(' and ')
    throw new Error(`only ${known} can be built; import ${name} with: warren images import SOURCE --name ${name}`)
  }
  return buildOnce(cache, name, options, find, async (build) => {
    requireRoot(`building ${name}`)
    requireTools('mmdebstrap', 'mke2fs', 'e2fsck', 'setpriv', 'unshare', ...recipe.tools)
    const startedAt = Date.now()
    const made = await recipe.make(build)
    return storeRoot(cache, build, { name, ...made, source: recipe.source, startedAt })
  })
}
