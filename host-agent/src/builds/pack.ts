/**
 * Makes an image of the disk of a build. Order of events:
 *
 *   1. The guest removes what belongs to its machine, writes the variables of the image and trims (guest-agent/src/pack.rs);
 *      the layer is taken and the VM stopped.
 *   2. The chain is written as one raw file, with our own parser of qcow2 (vmm/disk/qcow2/flatten.ts).
 *   3. The file system is checked, measured and made as small as it can be.
 *   4. The file is hashed, synced and renamed into the store; one rename gives it its name (images/image.ts).
 *
 * The content of the disk is hostile: it is never mounted on this machine, and the programs of step 3 run in a jail
 * (images/run-on-file.ts).
 */
import { stat } from 'node:fs/promises'
import path from 'node:path'
import { crashPoint } from '@warren/kit/crash-point'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import type { Build } from '../images/build.ts'
import { shrinkExt4 } from '../images/shrink-ext4.ts'
import type { Image } from '../images/store.ts'
import { BuildFailure } from './failure.ts'

export type PackRequest = {
  name: string
  base: Base
  /** Objects of the snapshot store, oldest first. */
  layers: readonly string[]
  /** For display. */
  source: string
  maxBytes: number
}

export type Packed = { image: Image; usedBytes: number }

export async function packImage(deps: Deps, request: PackRequest, signal: AbortSignal): Promise<Packed> {
  let usedBytes = 0
  const image = await deps.templateImages.publish(
    { name: request.name, source: request.source },
    async (build) => {
      const packed = await writeRoot(deps, request, build)
      usedBytes = packed.usedBytes
      await crashPoint('host.build.packed')
      return packed.file
    },
    signal,
  )
  return { image, usedBytes }
}

async function writeRoot(
  deps: Deps,
  { base, layers, maxBytes }: PackRequest,
  build: Build,
): Promise<{ file: string; usedBytes: number }> {
  const file = path.join(build.folder, 'disk')
  build.progress('writing the disk')
  const files = [base.files.disk, ...layers.map((layer) => deps.snapshots.fileOf(layer))]
  const flatten = () => deps.workers.run('flattenDisk', { image: base.files.image, files, out: file })
  await deps.volume.withRoom('the image', await sumFiles([base.files.image, ...files]), flatten, build.signal)
  build.signal?.throwIfAborted()
  build.progress('checking and shrinking the file system')
  const usedBytes = await shrinkExt4(deps, file, deps.uidOf(PACK_USER), build.signal)
  if (usedBytes > maxBytes) throw tooLarge(usedBytes, maxBytes)
  return { file, usedBytes }
}

/** At most what the files of the chain take together. */
const sumFiles = async (files: readonly string[]): Promise<number> =>
  (await Promise.all(files.map((file) => stat(file)))).reduce((sum, { blocks }) => sum + blocks * 512, 0)

/** A QEMU process has this user id only if its slot has this number in its lowest 16 bits. */
const PACK_USER = 0xffff

export const tooLarge = (usedBytes: number, maxBytes: number): BuildFailure =>
  new BuildFailure(
    'too_large',
    `the root file system takes ${gigabytes(usedBytes)} GB, more than ${gigabytes(maxBytes)} GB; remove files in the step ` +
      'that creates them, such as package caches',
  )

const gigabytes = (bytes: number): string => (bytes / 1e9).toFixed(1)
