/**
 * Base snapshots: a machine is booted once for each (image, shape, disk size), warmed, stopped and saved. Every
 * sandbox is a clone of one.
 *
 * Order of events: a folder beside its place; a disk over the image; a cold boot with the memory in a file; the
 * guest's filesystem grown to its disk; the agent's paths run once, so that clones find them warm; `stop`, the
 * devices' state, `quit`; the files made read-only; a clone that answers proves it all; the manifest; the rename. A
 * boot that hangs, panics or cannot be cloned is tried again.
 *
 * A state file has no check of its own, not even that it belongs to its memory (platform 4.2): the key of a base is a
 * hash of everything it depends on, and its files are never written again.
 */
import { createHash, randomUUID } from 'node:crypto'
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
  truncate,
  writeFile,
} from 'node:fs/promises'
import type { ClientHttp2Session } from 'node:http2'
import path from 'node:path'
import { syncFolder } from '@warren/kit/files'
import { errorText } from '@warren/kit/text'
import { Undo } from '@warren/kit/undo'
import { GuestGrowAnswer, GuestReady } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { openGuestChannel } from '../guest/channel.ts'
import { askGuest } from '../guest/client.ts'
import { runInGuest } from '../guest/exec.ts'
import type { Image } from '../images/index.ts'
import { proveBase } from './base-proof.ts'
import { launchQemu, socketDirOf, socketsIn } from './launch.ts'
import { diskFile, inWork, renderArgs, type Shape, STATE_FILE } from './qemu/args.ts'
import { createOverlay } from './qemu/qcow2/overlay.ts'

export type Base = {
  key: string
  /** Of this very build: one that is built again from the same things has other memory. */
  id: string
  folder: string
  shape: Shape
  diskMib: number
  files: { image: string; disk: string; ram: string; state: string }
}

const BOOT_LIMIT_MS = 40_000
const ATTEMPTS = 3
/** What `disk_mib` is for most sandboxes; smaller ones have a base of their own. */
export const BASE_DISK_MIB = 10_240

const building = new Map<string, Promise<Base>>()

/** Finds the base or builds it; whoever asks while it is being built waits for the same one. */
export async function ensureBase(deps: Deps, image: Image, shape: Shape, diskMib: number): Promise<Base> {
  const baseDiskMib = Math.min(diskMib, BASE_DISK_MIB)
  const facts = describe(deps, image, shape, baseDiskMib)
  const key = createHash('sha256').update(JSON.stringify(facts)).digest('hex').slice(0, 32)
  const known = await readBase(deps, key)
  if (known) return known
  let work = building.get(key)
  if (!work) {
    const base = { ...baseAt(deps, key), id: randomUUID(), shape, diskMib: baseDiskMib }
    work = build(deps, base, image, facts).finally(() => building.delete(key))
    building.set(key, work)
  }
  return work
}

/** The very one that was built before, perhaps by an older Warren. */
export async function findBase(deps: Deps, wanted: { base: string; baseId: string }): Promise<Base | undefined> {
  const found = await readBase(deps, wanted.base)
  return found?.id === wanted.baseId ? found : undefined
}

/** What it is, its manifest says. */
async function readBase(deps: Deps, key: string): Promise<Base | undefined> {
  const place = baseAt(deps, key)
  const text = await readFile(path.join(place.folder, 'manifest.json'), 'utf8').catch(() => undefined)
  if (text === undefined) return undefined
  const { id, shape, diskMib } = JSON.parse(text) as Pick<Base, 'id' | 'shape' | 'diskMib'>
  return { ...place, id, shape, diskMib }
}

function baseAt(deps: Deps, key: string): Pick<Base, 'key' | 'folder' | 'files'> {
  const folder = path.join(deps.config.dataDir, 'bases', key)
  return { key, folder, files: filesIn(folder) }
}

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
      await deps.heavyGate(() => buildOnce(deps, base, image, facts))
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
    await proveBase(deps, fresh)
    await seal(folder)
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

async function bootAndSave(deps: Deps, base: Base): Promise<void> {
  const signal = AbortSignal.any([AbortSignal.timeout(BOOT_LIMIT_MS), deps.stopping])
  const undo = new Undo()
  const id = `base-${base.key}`
  const consoleFile = path.join(base.folder, 'console.log')
  try {
    const slot = await deps.network.slots.take()
    undo.add('slot', () => deps.network.slots.release(slot))
    const uid = deps.uidOf(slot)
    const work = path.join(base.folder, 'work')
    await mkdir(work, { mode: 0o700 })
    const disk = path.join(work, diskFile(0))
    await createOverlay(disk, { sizeMib: base.diskMib, backing: { file: base.files.image, format: 'raw' } })
    for (const file of [base.files.ram, consoleFile]) await writeFile(file, '')
    await truncate(base.files.ram, base.shape.mem_mib * 1024 * 1024)
    for (const file of [work, disk, base.files.ram, consoleFile]) await chown(file, uid, uid)

    const { qmp } = await launchQemu(
      deps,
      {
        id,
        start: 'base',
        type: deps.machine.type,
        slot,
        uid,
        shape: base.shape,
        files: {
          image: { path: base.files.image, flags: 'r' },
          work: { path: work, flags: 'r' },
          ram: { path: base.files.ram, flags: 'r+' },
          kernel: { path: deps.kernel.vmlinuz, flags: 'r' },
          initrd: { path: deps.initramfs.path, flags: 'r' },
          console: { path: consoleFile, flags: 'w' },
        },
        layers: [],
        logFile: path.join(base.folder, 'qemu.log'),
        cgroups: [],
        lasting: false,
      },
      undo,
      signal,
    )
    const ended = qmp.closed.then(() => {
      throw new Error('the guest panicked or powered off')
    })
    const channel = await Promise.race([openGuestChannel(socketsIn(socketDirOf(deps, id)), signal), ended])
    undo.add('channel', () => channel.close())
    await Promise.race([warm(channel.session, signal), ended])
    ended.catch(() => {}) // From here on the end is ours.
    channel.close()
    await qmp.run('stop')
    await qmp.run('xen-save-devices-state', { filename: inWork(STATE_FILE), live: false })
    await qmp.run('quit').catch(() => {}) // It may be gone before it answers.
    await qmp.closed
    await rename(disk, base.files.disk)
    await rename(path.join(work, STATE_FILE), base.files.state)
    await rm(work, { recursive: true })
  } catch (error) {
    const tail = (await readFile(consoleFile, 'utf8').catch(() => '')).trimEnd().split('\n').slice(-6).join('\n')
    throw new Error(`boot: ${errorText(error)}${tail === '' ? '' : `\n${tail}`}`, { cause: error })
  } finally {
    await undo.run(deps.log)
  }
}

/** What every sandbox does first is done here, so that its pages are in memory and its code translated. */
async function warm(session: ClientHttp2Session, signal: AbortSignal): Promise<void> {
  const ready = await askGuest(session, { method: 'GET', path: '/ready', answer: GuestReady }, signal)
  if (!['tsc', 'kvm-clock'].includes(ready.clocksource))
    throw new Error(`the guest counts time by ${ready.clocksource}`)
  await askGuest(session, { method: 'POST', path: '/grow', body: {}, answer: GuestGrowAnswer }, signal)
  for (let i = 0; i < 3; i++) await runInGuest(session, { cmd: '/bin/sh', args: ['-c', 'true'] }, signal)
  await runInGuest(session, { cmd: 'sync' }, signal)
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
