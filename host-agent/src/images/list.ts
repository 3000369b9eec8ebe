/** Lists the images of this machine: ready, being built by any process, or failed in the last attempt. */
import type { HostImage } from '@warren/protocol/host-api'
import { listBuilding, listFailed } from './build.ts'
import { findImage } from './image.ts'
import { type ImageCache, isImageName } from './layout.ts'
import { listNames } from './names.ts'

export async function listImages(cache: ImageCache): Promise<HostImage[]> {
  const [names, building, failed] = await Promise.all([listNames(cache), listBuilding(cache), listFailed(cache)])
  const all = [...new Set([...names, ...building.keys(), ...failed.keys()])].filter(isImageName).sort()
  const images = await Promise.all(all.map((name) => describe(cache, name, building.get(name), failed.get(name))))
  return images.filter((image) => image !== undefined)
}

/** An image stays ready while it is built again, and if that fails. */
async function describe(
  cache: ImageCache,
  name: string,
  building: string | undefined,
  failed: string | undefined,
): Promise<HostImage | undefined> {
  const image = await findImage(cache, name)
  const progress = building ?? failed
  if (image) {
    const { digest, sizeBytes, minDiskMib } = image
    const ready = { name, state: 'ready', digest, size_bytes: sizeBytes, min_disk_mib: minDiskMib } as const
    return progress === undefined ? ready : { ...ready, progress }
  }
  if (building !== undefined) return { name, state: 'building', progress: building }
  if (failed !== undefined) return { name, state: 'failed', progress: failed }
  return undefined // Removed meanwhile.
}
