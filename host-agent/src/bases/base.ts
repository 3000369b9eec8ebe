/**
 * Base snapshots: a machine is booted once for each (image, shape, disk size), warmed, stopped and saved. Every
 * sandbox is a clone of one.
 *
 * Order of events: a folder beside its place; a disk over the image; a cold boot with the memory in a file; the
 * guest's filesystem grown to its disk; the agent's paths run once, so that clones find them warm; `stop`, the
 * devices' state, `quit`; a clone that answers proves it all; the files made read-only and summed up; the manifest; the
 * rename. A boot that hangs, panics or cannot be cloned is tried again.
 *
 * A state file has no check of its own, not even that it belongs to its memory (platform 4.2): the key of a base is a
 * hash of everything it depends on, and its files are never written again.
 */
import { createHash, randomUUID } from 'node:crypto'
import { existsSync } from 'node:fs'
import {
  chmod,
  chown,
  constants,
  copyFile,
  link,
  mkdir,
  open,
  readdir,
  readFile,
  rename,
  rm,
  writeFile,
} from 'node:fs/promises'
import path from 'node:path'
import { crashPoint } from '@warren/kit/crash-point'
import { syncFolder } from '@warren/kit/files'
import { errorText } from '@warren/kit/text'
import { Undo } from '@warren/kit/undo'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import type { Image } from '../images/index.ts'
import { renderArgs, type Shape } from '../vmm/args.ts'
import { bootAndSave } from './boot.ts'
import { findDamage, sumBase } from './check.ts'
import { proveBase } from './prove.ts'

export type Base = {
  key: string
  /** Of this very build: one that is built again from the same things has other memory. */
  id: string
  folder: string
  shape: Shape
  diskMib: number
  files: { image: string; disk: string; ram: string; state: string }
}

const ATTEMPTS = 3
/** What `disk_mib` is for most sandboxes; smaller ones have a base of their own. */
export const BASE_DISK_MIB = 10_240

/** Of those that are set aside: nothing new is made from them, and what was made from them is told why it cannot run. */
export const DAMAGED = '.damaged'

type Wanted = { image: Image; shape: Shape; diskMib: number; facts: ReturnType<typeof describe> }

const building = new Map<string, Promise<Base>>()

/** Finds the base or builds it; whoever asks while it is being built waits for the same one. */
export async function ensureBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Promise<Base> {
  const baseDiskMib = Math.min(diskMib, BASE_DISK_MIB)
  const facts = describe(deps, image, shape, baseDiskMib)
  const key = createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 32)
  let work = building.get(key)
  if (!work) {
    work = findOrBuild(deps, key, { image, shape, diskMib: baseDiskMib, facts }).finally(() => building.delete(key))
    building.set(key, work)
  }
  return work
}

async function findOrBuild(deps: Deps, key: string, wanted: Wanted): Promise<Base> {
  const known = await readBase(deps, key)
  const damage = known && (await findDamage(deps, known))
  if (known && damage === undefined) return known
  const { folder } = baseAt(deps, key)
  if (existsSync(folder)) {
    deps.log.error({ base: key, damage }, 'a base is damaged; it is set aside and built anew')
    const aside = baseAt(deps, asideOf(key)).folder
    await rm(aside, { recursive: true, force: true })
    await rename(folder, aside)
  }
  const base = { ...baseAt(deps, key), id: randomUUID(), shape: wanted.shape, diskMib: wanted.diskMib }
  return build(deps, base, wanted.image, wanted.facts)
}

/** The very one that was built before, perhaps by an older Warren; what was made from another must not run on it. */
export async function findBase(deps: Deps, wanted: { base: string; baseId: string }): Promise<Base> {
  for (const key of [wanted.base, asideOf(wanted.base)]) {
    const found = await readBase(deps, key)
    if (found?.id !== wanted.baseId) continue
    // Also one that was set aside: a disk that could not read it then may read it again.
    const damage = await findDamage(deps, found)
    if (damage === undefined) return found
    throw new HostError('snapshot_damaged', `the base it was made from is damaged: ${damage}`)
  }
  throw new HostError('snapshot_incompatible', 'the base it was made from is not on this host')
}

/** What it is, its manifest says. */
async function readBase(deps: Deps, key: string): Promise<Base | undefined> {
  const place = baseAt(deps, key)
  const text = await readFile(path.join(place.folder, 'manifest.json'), 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  try {
    const { id, shape, diskMib } = JSON.parse(text) as Pick<Base, 'id' | 'shape' | 'diskMib'>
    return { ...place, id, shape, diskMib }
  } catch {
    return undefined // Nobody can say any more what it is.
  }
}

function baseAt(deps: Deps, key: string): Pick<Base, 'key' | 'folder' | 'files'> {
  const folder = path.join(deps.config.dataDir, 'bases', key)
  return { key, folder, files: filesIn(folder) }
}

const asideOf = (key: string): string => `${key}${DAMAGED}`

const filesIn = (folder: string) => ({
  image: path.join(folder, 'root.ext4'),
  disk: path.join(folder, 'disk.qcow2'),
  ram: path.join(folder, 'ram'),
  state: path.join(folder, 'state'),
})

/** Everything a clone must have in common with its base. The command line stands for devices and their order. */
function describe(deps: Deps, image: Image, shape: Shape, diskMib: number) {
  const { machine, kernel, initramfs } = deps
  const line = renderArgs({ start: 'state', machine, shape, socketDir: '', mtu: deps.network.host.mtu, layers: 0 })
  return { machine, kernel: kernel.digest, initramfs: initramfs.digest, image: image.digest, shape, diskMib, line }
}

async function build(deps: Deps, base: Base, image: Image, facts: object): Promise<Base> {
  const startedAt = Date.now()
  let last: unknown
  for (let attempt = 1; attempt <= ATTEMPTS; attempt++) {
    try {
      await deps.buildLimiter(() => buildOnce(deps, base, image, facts))
      deps.log.info(
        { base: base.key, image: image.name, shape: base.shape, ms: Date.now() - startedAt },
        'base is ready',
      )
      return base
    } catch (error) {
      last = error
      deps.stopping.throwIfAborted()
      deps.log.warn({ err: error, image: image.name, attempt }, 'a base could not be built')
    }
  }
  throw new Error(`${image.name} does not boot: ${errorText(last)}`, { cause: last })
}

async function buildOnce(deps: Deps, base: Base, image: Image, facts: object): Promise<void> {
  const folder = `${base.folder}.new`
  const fresh = { ...base, folder, files: filesIn(folder) }
  const undo = new Undo()
  undo.add('folder', () => rm(folder, { recursive: true, force: true }))
  try {
    await rm(folder, { recursive: true, force: true })
    await mkdir(folder, { recursive: true, mode: 0o700 })
    await linkOrUse(image.path, fresh.files.image)
    await bootAndSave(deps, fresh)
    await crashPoint('host.base.saved')
    await proveBase(deps, fresh)
    await seal(folder)
    await sumBase(deps, fresh)
    await writeFile(
      path.join(folder, 'manifest.json'),
      `${JSON.stringify({ key: base.key, id: base.id, ...facts }, null, 2)}\n`,
    )
    await syncFiles(folder)
    await rename(folder, base.folder)
    await syncFolder(path.dirname(folder))
  } catch (error) {
    await undo.run(deps.log)
    throw error
  }
}

/** Our own name for the image: sandboxes live on when the cache it came from is emptied. */
async function linkOrUse(from: string, to: string): Promise<void> {
  await link(from, to).catch(async (error: NodeJS.ErrnoException) => {
    if (error.code !== 'EXDEV') throw error
    await copyFile(from, to, constants.COPYFILE_FICLONE)
  })
}

/** From now on nobody writes to them, QEMU's users least of all. */
async function seal(folder: string): Promise<void> {
  for (const name of await readdir(folder)) {
    const file = path.join(folder, name)
    if (name === 'root.ext4') continue // Shares its inode with the image store.
    await chown(file, 0, 0)
    await chmod(file, 0o444)
  }
}

async function syncFiles(folder: string): Promise<void> {
  for (const name of [...(await readdir(folder)), '.']) {
    const handle = await open(path.join(folder, name), 'r')
    try {
      await handle.sync()
    } finally {
      await handle.close()
    }
  }
}
