/** All images of this machine: ready, being built by whatever process, or failed when last tried. */
import type { HostImage } from '@warren/protocol/host-api'
import { listBuilding, listFailed } from './build.ts'
import { findImage } from './image.ts'
import { isImageName, type Store } from './layout.ts'
import { listNames } from './names.ts'

export async function listImages(store: Store): Promise<HostImage[]> {
  const [names, building, failed] = await Promise.all([listNames(store), listBuilding(store), listFailed(store)])
  const all = [...new Set([...names, ...building.keys(), ...failed.keys()])].filter(isImageName).sort()
  const images = await Promise.all(all.map((name) => describe(store, name, building.get(name), failed.get(name))))
  return images.filter((image) => image !== undefined)
}

/** What is there stays usable while it is built anew, or when that failed. */
async function describe(
  store: Store,
  name: string,
  building: string | undefined,
  failed: string | undefined,
): Promise<HostImage | undefined> {
  const image = await findImage(store, name)
  const progress = building ?? failed
  if (image) {
    const { digest, sizeBytes, minDiskMib } = image
    const ready = { name, state: 'ready', digest, size_bytes: sizeBytes, min_disk_mib: minDiskMib } as const
    return progress === undefined ? ready : { ...ready, progress }
  }
  if (building !== undefined) return { name, state: 'building', progress: building }
  if (failed !== undefined) return { name, state: 'failed', progress: failed }
  return undefined // removed between two looks
}
