/** The image that a request names, or why it cannot be used. */
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { Image } from './store.ts'

type Request = { image: string; disk_mib: number }

export async function getImage(deps: Pick<Deps, 'images'>, { image: name, disk_mib }: Request): Promise<Image> {
  const image = await deps.images.find(name)
  if (!image) throw new HostError('image_not_ready', await describeImage(deps, name))
  if (disk_mib < image.minDiskMib) {
    throw new HostError('disk_too_small', `${name} needs a disk of at least ${image.minDiskMib} MiB`)
  }
  return image
}

async function describeImage(deps: Pick<Deps, 'images'>, name: string): Promise<string> {
  const image = (await deps.images.list()).find((one) => one.name === name)
  if (!image) return `${name} is not on this host`
  return `${name} is ${image.state}${image.progress ? `: ${image.progress}` : ''}`
}
