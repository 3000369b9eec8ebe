/** Which image a runtime gets. */
import type { Config } from '../../config.ts'

export type Images = {
  /** From a runtime, such as `node:22`, to the image that an operator made for it. */
  byRuntime: ReadonlyMap<string, string>
  standard: string
}

export function readImages({ images, standardImage }: Pick<Config, 'images' | 'standardImage'>): Images {
  const entries = images.map((entry) => entry.split('=', 2) as [string, string])
  return { byRuntime: new Map(entries), standard: standardImage }
}

/** A runtime that the operator made no image for runs on the standard one, and the log says so. */
export function chooseImage({ runtime }: { runtime: string }, images: Images): { image: string; notes: string[] } {
  const own = images.byRuntime.get(runtime)
  if (own !== undefined) return { image: own, notes: [] }
  const isNamed = runtime.includes(':')
  return {
    image: images.standard,
    notes: isNamed ? [`runtime ${runtime} has no dedicated image here; ${images.standard} is used`] : [],
  }
}
