/**
 * Builds a base. Order of events:
 *
 *   1. A folder beside the final one; a disk on top of the image.
 *   2. A cold boot with the memory in a file. The guest's file system grows to the size of its disk, and the code paths
 *      that every sandbox uses first run once, so that clones find them warm.
 *   3. The CPUs stop, the device state is saved, QEMU quits.
 *   4. A clone is started and must respond (verify.ts).
 *   5. The files become read-only and get checksums. The manifest is written, and the folder is renamed into place.
 *
 * A boot that hangs, panics or cannot be cloned is tried again.
 */
import { randomUUID } from 'node:crypto'
import { chmod, chown, constants, copyFile, link, mkdir, readdir, rename, rm, stat, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { abortable } from '@warren/kit/abortable'
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/error-text'
import { syncFile, syncFolder } from '@warren/kit/files'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { Image } from '../images/store.ts'
import { Undo } from '../undo.ts'
import { type Base, filesIn, locateBase } from './base.ts'
import { bootAndSave } from './boot.ts'
import type { Build } from './builds.ts'
import { writeChecksums } from './check.ts'
import type { WantedBase } from './key.ts'
import { verifyBase } from './verify.ts'

const ATTEMPTS = 3
/** A guest that has booted has touched 90 MiB of 256 MiB, and 270 MiB of 4 GiB. */
const BOOTED_MAX_MIB = 512
const BLOCK_BYTES = 512

/** `deps.stopping` also aborts a build in the background that must yield (builds.ts). */
export async function buildBase(
  deps: Deps,
  { key, image, shape, diskMib, inputs }: WantedBase,
  build: Build,
): Promise<Base> {
  const base: Base = { ...locateBase(deps, key), id: randomUUID(), shape, diskMib }
  const startedAt = Date.now()
  let last: unknown
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    try {
      build.progress = 'waiting for another build'
      await deps.buildLimiter(async () => {
        const bytes = await findNeededBytes(deps, base, image)
        await deps.volume.withRoom('a base', bytes, () => buildOnce(deps, base, image, inputs, build), deps.stopping)
      }, deps.stopping)
      const ms = Date.now() - startedAt
      deps.log.info({ base: base.key, image: image.name, shape: base.shape, ms }, 'built a base')
      return base
    } catch (error) {
      last = error
      deps.stopping.throwIfAborted()
      if (error instanceof HostError && error.code === 'disk_full') throw error
      deps.log.warn({ err: error, image: image.name, attempt }, 'failed to build a base')
    }
  }
  throw new Error(`failed to boot ${image.name} in ${ATTEMPTS} attempts: ${errorText(last)}`, { cause: last })
}

/** Memory that the guest has touched, and the image where it must be copied. The disk has little beside it. */
async function findNeededBytes(deps: Deps, { shape }: Base, image: Image): Promise<number> {
  const [from, to] = await Promise.all([stat(image.path), stat(deps.config.dataDir)])
  const copied = from.dev === to.dev ? 0 : from.blocks * BLOCK_BYTES
  return copied + Math.min(shape.mem_mib, BOOTED_MAX_MIB) * 1024 ** 2
}

async function buildOnce(deps: Deps, base: Base, image: Image, inputs: object, build: Build): Promise<void> {
  const folder = `${base.folder}.new`
  const fresh = { ...base, folder, files: filesIn(folder) }
  const undo = new Undo()
  undo.add('folder', () => rm(folder, { recursive: true, force: true }))
  try {
    await rm(folder, { recursive: true, force: true })
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await linkOrCopy(image.path, fresh.files.image)
    build.progress = 'booting'
    await bootAndSave(deps, fresh, build)
    await crashPoint('host.base.saved')
    build.progress = 'verifying'
    await verifyBase(deps, fresh)
    build.progress = 'computing checksums'
    await makeReadOnly(folder)
    // Both read or write all of the base, which may take seconds.
    await abortable(writeChecksums(deps, fresh), deps.stopping)
    const manifest = { key: base.key, id: base.id, imageName: image.name, ...inputs }
    await writeFile(path.join(folder, 'manifest.json'), `${JSON.stringify(manifest, null, 2)}\n`)
    await abortable(syncFiles(folder), deps.stopping)
    await rename(folder, base.folder)
    await syncFolder(path.dirname(folder))
  } catch (error) {
    await undo.run(deps.log)
    throw error
  }
}

/** A separate name for the image, so that sandboxes keep working when the image cache is emptied. */
async function linkOrCopy(from: string, to: string): Promise<void> {
  await link(from, to).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EXDEV') throw error
    await copyFile(from, to, constants.COPYFILE_FICLONE)
  })
}

async function makeReadOnly(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const file = path.join(folder, name)
    if (name === 'root.ext4') continue // Shares its inode with the image store.
    await chown(file, 0, 0)
    await chmod(file, 0o444)
  }
}

async function syncFiles(folder: string): Promise<void> {
  for (const name of [...(await readdir(folder)), '.']) await syncFile(path.join(folder, name))
}
