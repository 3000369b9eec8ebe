/** Whether a create could use a base today: it has the image, kernel, QEMU and guest agent that are the current ones. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { isDeepStrictEqual } from 'node:util'
import { type Static, Type } from 'typebox'
import { Value } from 'typebox/value'
import type { Deps } from '../deps.ts'
import { digestOf, hasOperatorSettings } from '../guest/operator-settings.ts'

/** Of the inputs in the manifest (key.ts), those that change with an upgrade. */
const Inputs = Type.Object({
  machine: Type.Unknown(),
  kernel: Type.String(),
  initramfs: Type.String(),
  image: Type.String({ description: 'Digest.' }),
  /** Absent in bases of versions before it was recorded. */
  imageName: Type.Optional(Type.String()),
  operatorSettings: Type.Optional(Type.String()),
})
export type Inputs = Static<typeof Inputs>

/** Undefined if the folder has no manifest that can be read, as that of an unfinished build. */
export async function readInputs(folder: string): Promise<Inputs | undefined> {
  try {
    const inputs: unknown = JSON.parse(await readFile(path.join(folder, 'manifest.json'), 'utf8'))
    return Value.Check(Inputs, inputs) ? inputs : undefined
  } catch {
    return undefined // It does not exist, or is not JSON.
  }
}

/** The names of the images that are ready, by digest. */
export async function listCurrentImages({ images }: Pick<Deps, 'images'>): Promise<Map<string, string>> {
  const ready = (await images.list()).filter(({ state }) => state === 'ready')
  const found = await Promise.all(ready.map(({ name }) => images.find(name)))
  return new Map(found.flatMap((image, i) => (image ? [[image.digest, ready[i]!.name]] : [])))
}

export const isCurrent = (
  { machine, kernel, initramfs }: Pick<Deps, 'initramfs' | 'kernel' | 'machine'>,
  inputs: Inputs,
  images: ReadonlyMap<string, string>,
): boolean =>
  isDeepStrictEqual(inputs.machine, { ...machine }) &&
  inputs.kernel === kernel.digest &&
  inputs.initramfs === initramfs.digest &&
  images.has(inputs.image)

/** Whether it was booted with what the operator sets for guests now. */
export const hasCurrentSettings = ({ operatorSettings }: Pick<Deps, 'operatorSettings'>, inputs: Inputs): boolean =>
  inputs.operatorSettings === (hasOperatorSettings(operatorSettings) ? digestOf(operatorSettings) : undefined)
