/**
 * Finds a base in the data directory, imports it from those that other data directories built (shared.ts), or builds it.
 * Order of events in a build:
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
import { createHash, randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, chown, constants, copyFile, link, mkdir, readdir, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { abortable } from '@warren/kit/abortable'
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/error-text'
import { syncFile, syncFolder } from '@warren/kit/files'
import type { Deps } from '../deps.ts'
import { digestOf, hasOperatorSettings } from '../guest/operator-settings.ts'
import type { Image } from '../images/store.ts'
import { Undo } from '../undo.ts'
import { renderArgs, type Shape } from '../vmm/args.ts'
import { BASE_DISK_MIB, type Base, damagedKey, filesIn, locateBase, readBase } from './base.ts'
import { bootAndSave } from './boot.ts'
import { findDamage, writeChecksums } from './check.ts'
import { importSharedBase, lockSharedBase, publishSharedBase } from './shared.ts'
import { verifyBase } from './verify.ts'

const ATTEMPTS = 3

type Wanted = { image: Image; shape: Shape; diskMib: number; inputs: ReturnType<typeof describeInputs> }

/** `isBooted`: it did not exist before. */
export type EnsuredBase = { base: Base; isBooted: boolean }

const building = new Map<string, Promise<EnsuredBase>>()

/** Concurrent callers share one build. */
export async function ensureBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Promise<EnsuredBase> {
  const { key, ...wanted } = describeBase(deps, image, shape, diskMib)
  let work = building.get(key)
  if (!work) {
    work = findOrBuild(deps, key, wanted).finally(() => building.delete(key))
    building.set(key, work)
  }
  return work
}

/** Whether it is in the data directory. It may still turn out to be damaged. */
export async function hasBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Promise<boolean> {
  return (await readBase(deps, describeBase(deps, image, shape, diskMib).key)) !== undefined
}

function describeBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Wanted & { key: string } {
  const baseDiskMib = Math.min(diskMib, BASE_DISK_MIB)
  const inputs = describeInputs(deps, image, shape, baseDiskMib)
  const key = createHash('sha256').update(JSON.stringify(inputs)).digest('hex').slice(0, 32)
  return { key, image, shape, diskMib: baseDiskMib, inputs }
}

async function findOrBuild(deps: Deps, key: string, wanted: Wanted): Promise<EnsuredBase> {
  const known = await findUsable(deps, key)
  if (known) return { base: known, isBooted: false }
  // What the operator sets for guests is in their memory from the start, and a proxy may have a password.
  const lock = hasOperatorSettings(deps.operatorSettings) ? undefined : await lockSharedBase(deps, key)
  try {
    const imported = lock && (await importSharedBase(deps, key)) ? await findUsable(deps, key) : undefined
    if (imported) return { base: imported, isBooted: false }
    const fresh = { ...locateBase(deps, key), id: randomUUID(), shape: wanted.shape, diskMib: wanted.diskMib }
    const base = await build(deps, fresh, wanted.image, wanted.inputs)
    if (lock) await publishSharedBase(deps, key)
    return { base, isBooted: true }
  } finally {
    await lock?.release()
  }
}

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

/** Everything a clone must share with its base. QEMU's command line is included because it lists the devices in order. */
function describeInputs(deps: Deps, image: Image, shape: Shape, diskMib: number) {
  const { machine, kernel, initramfs } = deps
  const line = renderArgs({ start: 'state', machine, shape, socketDir: '', mtu: deps.network.host.mtu, layers: 0 })
  const settings = hasOperatorSettings(deps.operatorSettings)
    ? { operatorSettings: digestOf(deps.operatorSettings) }
    : {}
  return {
    ...{ machine, kernel: kernel.digest, initramfs: initramfs.digest, image: image.digest, shape, diskMib, line },
    ...settings,
  }
}

async function build(deps: Deps, base: Base, image: Image, inputs: object): Promise<Base> {
  const startedAt = Date.now()
  let last: unknown
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    try {
      await deps.buildLimiter(() => buildOnce(deps, base, image, inputs), deps.stopping)
      const ms = Date.now() - startedAt
      deps.log.info({ base: base.key, image: image.name, shape: base.shape, ms }, 'built a base')
      return base
    } catch (error) {
      last = error
      deps.stopping.throwIfAborted()
      deps.log.warn({ err: error, image: image.name, attempt }, 'failed to build a base')
    }
  }
  throw new Error(`failed to boot ${image.name} in ${ATTEMPTS} attempts: ${errorText(last)}`, { cause: last })
}

async function buildOnce(deps: Deps, base: Base, image: Image, inputs: object): Promise<void> {
  const folder = `${base.folder}.new`
  const fresh = { ...base, folder, files: filesIn(folder) }
  const undo = new Undo()
  undo.add('folder', () => rm(folder, { recursive: true, force: true }))
  try {
    await rm(folder, { recursive: true, force: true })
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await linkOrCopy(image.path, fresh.files.image)
    await bootAndSave(deps, fresh)
    await crashPoint('host.base.saved')
    await verifyBase(deps, fresh)
    await makeReadOnly(folder)
    // Both read or write all of the base, which may take seconds.
    await abortable(writeChecksums(deps, fresh), deps.stopping)
    const manifest = { key: base.key, id: base.id, ...inputs }
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
