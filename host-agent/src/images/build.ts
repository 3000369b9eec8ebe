/**
 * Everything in the cache is made in the same way: under the lock of its key, in a folder of its own under building/,
 * and then moved to its place by one rename after all of it is on the disk. A process that is killed on the way leaves
 * that folder only, with its lock free, and `openFolders` or the next build of the same key removes it.
 */
import { mkdir, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { errorText } from '@warren/kit/text'
import { buildingFolder, FOLDERS, keyOfBuilding, pathOf, type Store } from './layout.ts'
import { lock, tryLock } from './lock.ts'

/** For people: what is going on right now, one line. */
export type OnProgress = (text: string) => void

export type Build = {
  /** Empty at first, gone when the build ends. */
  folder: string
  progress: OnProgress
  signal: AbortSignal | undefined
}

export type BuildOptions = { onProgress?: OnProgress; signal?: AbortSignal }

const PROGRESS_FILE = '.progress'
/** The tree of a killed build may still be written to for a moment, until the kernel has ended its processes. */
const REMOVE = { recursive: true, force: true, maxRetries: 5, retryDelay: 200 } as const

/**
 * `find` is asked again once the lock is ours: whoever held it may have made what we want. The state of the build is
 * in files, so that another process can tell it as well.
 */
export async function buildOnce<T>(
  store: Store,
  key: string,
  options: BuildOptions,
  find: () => Promise<T | undefined>,
  make: (build: Build) => Promise<T>,
): Promise<T> {
  const already = await find()
  if (already !== undefined) return already
  const { onProgress = () => {}, signal } = options
  const held = await lock(pathOf(store, 'locks', key), () => onProgress(`${key} is being built already`), signal)
  const folder = buildingFolder(store, key)
  try {
    const made = await find()
    if (made !== undefined) return made
    await rm(folder, REMOVE)
    await mkdir(folder, { mode: 0o700 })
    await rm(pathOf(store, 'failed', key), { force: true })
    return await make({ folder, progress: tellProgress(folder, onProgress), signal })
  } catch (error) {
    if (!signal?.aborted) await rememberFailure(store, key, error)
    throw new Error(`could not build ${key}`, { cause: error })
  } finally {
    // What cannot be removed now goes at the next start; the lock must not wait for that.
    await rm(folder, REMOVE).catch((error) => store.log.warn({ err: error, key }, 'could not clean up after a build'))
    await held.release()
  }
}

/** For building anew: what was there before does not count, what another process makes meanwhile does. */
export async function findNewer<T extends { digest: string }>(
  find: () => Promise<T | undefined>,
): Promise<() => Promise<T | undefined>> {
  const before = await find()
  return async () => {
    const found = await find()
    return found?.digest === before?.digest ? undefined : found
  }
}

/** From building/ to its place. What is there already under a content's name is the same thing: it stays. */
export async function place(from: string, to: string): Promise<void> {
  await syncTree(from)
  try {
    await rename(from, to)
  } catch (error) {
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
  }
  await syncFolder(path.dirname(to))
}

/** Makes the folders, and removes what killed builds left behind. */
export async function openFolders(store: Store): Promise<void> {
  // Closed to others: roots under construction hold set-user-id programs and device files.
  for (const folder of FOLDERS) await mkdir(pathOf(store, folder), { recursive: true, mode: folderMode(folder) })
  for (const key of (await readdir(pathOf(store, 'building'))).map(keyOfBuilding)) {
    const free = await tryLock(pathOf(store, 'locks', key))
    if (!free) continue
    try {
      await rm(buildingFolder(store, key), REMOVE)
      store.log.info({ key }, 'removed what a killed build left behind')
    } finally {
      await free.release()
    }
  }
}

/** The keys that are being built now, by whatever process, with their progress. */
export async function listBuilding(store: Store): Promise<Map<string, string>> {
  const building = new Map<string, string>()
  for (const key of (await readdir(pathOf(store, 'building'))).map(keyOfBuilding)) {
    const free = await tryLock(pathOf(store, 'locks', key))
    await free?.release()
    if (free) continue
    const progress = await readFile(path.join(buildingFolder(store, key), PROGRESS_FILE), 'utf8').catch(
      () => 'starting',
    )
    building.set(key, progress)
  }
  return building
}

export async function listFailed(store: Store): Promise<Map<string, string>> {
  const keys = (await readdir(pathOf(store, 'failed'))).filter((key) => !key.startsWith('.'))
  const reasons = await Promise.all(keys.map((key) => readFile(pathOf(store, 'failed', key), 'utf8').catch(() => '')))
  return new Map(keys.map((key, index) => [key, reasons[index] || 'for an unknown reason']))
}

async function rememberFailure(store: Store, key: string, error: unknown): Promise<void> {
  await writeFileDurably(pathOf(store, 'failed', key), errorText(error).replace(/\s+/g, ' ')).catch((writing) => {
    // A full disk is the likely reason for both; the caller gets the first error anyway.
    store.log.warn({ err: writing, key }, 'could not write down why a build failed')
  })
}

function tellProgress(folder: string, onProgress: OnProgress): OnProgress {
  return (text) => {
    onProgress(text)
    // For other processes, who can live without it: a build does not fail by its progress.
    writeFile(path.join(folder, PROGRESS_FILE), text).catch(() => {})
  }
}

async function syncTree(file: string): Promise<void> {
  const handle = await open(file, 'r')
  try {
    if ((await handle.stat()).isDirectory()) {
      for (const name of await readdir(file)) await syncTree(path.join(file, name))
    }
    await handle.sync()
  } finally {
    await handle.close()
  }
}

const folderMode = (folder: string): number => (folder === 'building' ? 0o700 : 0o755)
