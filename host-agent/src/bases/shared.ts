/**
 * Bases that the data directories of this machine share, so that a new one does not boot them again. They are in the
 * cache directory, one folder each, named by the key of the base and a hash of the machine's processor: a saved machine
 * must only be loaded where it finds the same CPU features. The key has everything else it depends on (ensure.ts).
 *
 * A base is published by links to its read-only files under a temporary name, which is then renamed. A data directory that
 * needs it links the files in turn; where links are not possible, they are copied. So removing either side, or emptying
 * the cache, does not affect the other. Before its first use an imported base is compared with its checksums, like any
 * other (check.ts).
 *
 * A base holds nothing private: it is a guest that ran before it had an identity. A clone gets entropy, machine id, keys
 * and address when it becomes a sandbox (vmm/apply-identity.ts). A base with settings of the operator is not shared.
 */
import { createHash } from 'node:crypto'
import { link, lstat, mkdir, readdir, readFile, rename, rm, stat, utimes } from 'node:fs/promises'
import path from 'node:path'
import { syncFile, syncFolder } from '@warren/kit/files'
import type { Deps } from '../deps.ts'
import { type Lock, lock, tryLock } from '../images/lock.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { locateBase } from './base.ts'

type SharedDeps = Pick<Deps, 'config' | 'log' | 'stopping'>

/** All of a base that is read again. The manifest is last: a folder without it is not a base. */
const FILES = ['root.ext4', 'disk.qcow2', 'ram', 'state', 'sums.json', 'manifest.json']
/** A base that no data directory asked for in this time, and that this version cannot use, is removed. */
const UNUSED_MS = 24 * 60 * 60_000

/**
 * Held while a base is imported or built, so that two instances do not boot the same one. Undefined if nothing is shared,
 * or if the folder cannot be used: then the base is for this data directory only.
 */
export async function lockSharedBase(deps: SharedDeps, key: string): Promise<Lock | undefined> {
  const onWait = () => deps.log.info({ base: key }, 'waiting for another Warren that boots the same base')
  return withLockFile(deps, key, (file) => lock(file, onWait, deps.stopping))
}

/** The same without waiting: also undefined if another instance holds it. */
export const tryLockSharedBase = (deps: SharedDeps, key: string): Promise<Lock | undefined> =>
  withLockFile(deps, key, tryLock)

async function withLockFile(
  deps: SharedDeps,
  key: string,
  acquire: (file: string) => Promise<Lock | undefined>,
): Promise<Lock | undefined> {
  if (deps.config.sharedBases === undefined) return undefined
  const folder = path.join(deps.config.sharedBases, 'locks')
  try {
    await mkdir(folder, { recursive: true, mode: 0o700 })
    return await acquire(path.join(folder, await sharedName(key)))
  } catch (error) {
    deps.stopping.throwIfAborted()
    deps.log.warn({ err: error, folder }, 'failed to lock a shared base: it is not shared')
    return undefined
  }
}

/** Links the shared base into the data directory. False if there is none, or if it cannot be used. */
export async function importSharedBase(deps: SharedDeps, key: string): Promise<boolean> {
  const shared = await locateShared(deps, key)
  if (shared === undefined || !(await isPrivate(shared))) return false
  const { folder } = locateBase(deps, key)
  try {
    await utimes(shared, new Date(), new Date()).catch(() => {}) // Only its age is wrong.
    await copyBase(shared, `${folder}.new`)
    await rename(`${folder}.new`, folder)
    await syncFolder(path.dirname(folder))
    return true
  } catch (error) {
    await rm(`${folder}.new`, { recursive: true, force: true })
    deps.log.warn({ err: error, base: key }, 'failed to import a shared base: it is booted instead')
    return false
  }
}

/** After a build. Without a shared base the data directory still has its own. */
export async function publishSharedBase(deps: SharedDeps, key: string): Promise<void> {
  const shared = await locateShared(deps, key)
  if (shared === undefined) return
  const partial = `${shared}.new`
  try {
    await rm(shared, { recursive: true, force: true }) // A damaged one.
    await copyBase(locateBase(deps, key).folder, partial)
    await rename(partial, shared)
    await syncFolder(path.dirname(shared))
  } catch (error) {
    await rm(partial, { recursive: true, force: true })
    deps.log.warn({ err: error, base: key }, 'failed to share a base with other data directories')
  }
}

/** Removes shared bases that no create could use any more, and leftovers of interrupted publications. */
export async function pruneSharedBases(
  { config }: Pick<SharedDeps, 'config'>,
  isCurrent: (folder: string) => Promise<boolean>,
): Promise<string[]> {
  const removed: string[] = []
  const folder = config.sharedBases
  for (const name of folder === undefined ? [] : await readdir(folder).catch(() => [])) {
    const base = path.join(folder!, name)
    const found = name === 'locks' ? undefined : await stat(base).catch(() => undefined)
    if (!found || Date.now() - found.mtimeMs < UNUSED_MS || (await isCurrent(base))) continue
    await rm(base, { recursive: true, force: true })
    removed.push(name)
  }
  return removed
}

async function copyBase(from: string, to: string): Promise<void> {
  await rm(to, { recursive: true, force: true })
  await mkdir(to, { recursive: true, mode: 0o700 })
  for (const name of FILES) {
    await link(path.join(from, name), path.join(to, name)).catch(async (error: NodeJS.ErrnoException) => {
      if (error.code !== 'EXDEV') throw error
      // The memory has holes, which a plain copy would fill.
      const options = ['--reflink=auto', '--sparse=always', '--preserve=mode,ownership,timestamps']
      await runCommandOrThrow('cp', [...options, path.join(from, name), path.join(to, name)])
      await syncFile(path.join(to, name)) // A linked file is durable since its base was built.
    })
  }
  await syncFolder(to)
}

/** Only files that root alone could have written are executed as a guest's memory. */
async function isPrivate(folder: string): Promise<boolean> {
  for (const name of ['.', ...FILES]) {
    const found = await lstat(path.join(folder, name)).catch(() => undefined)
    const isKind = name === '.' ? found?.isDirectory() : found?.isFile()
    if (!found || !isKind || found.uid !== process.getuid?.() || (found.mode & 0o022) !== 0) return false
  }
  return true
}

async function locateShared({ config }: Pick<SharedDeps, 'config'>, key: string): Promise<string | undefined> {
  return config.sharedBases === undefined ? undefined : path.join(config.sharedBases, await sharedName(key))
}

const sharedName = async (key: string): Promise<string> => `${key}-${await hashProcessor()}`

let processor: Promise<string> | undefined

/** Of the features of the first processor. They do not change while the machine runs. */
function hashProcessor(): Promise<string> {
  processor ??= readFile('/proc/cpuinfo', 'utf8').then((text) => {
    const lines = text.split('\n\n')[0]!.split('\n')
    const facts = lines.filter((line) => /^(vendor_id|cpu family|model|stepping|flags|address sizes)\s*:/.test(line))
    return createHash('sha256').update(facts.join('\n')).digest('hex').slice(0, 8)
  })
  return processor
}
