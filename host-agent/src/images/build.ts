/**
 * Builds things in the cache. Everything there is built the same way: under the lock of its key, in a folder under
 * building/, which is synced and then moved into place with one rename. If a process is killed meanwhile, only that
 * folder is left, with its lock free; `prepareFolders` or the next build of the same key removes it.
 */
import { mkdir, open, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import { syncFolder, writeFileDurably } from '@warren/kit/files'
import { buildingFolder, FOLDERS, type ImageCache, keyOfBuilding, pathOf } from './layout.ts'
import { lock, tryLock } from './lock.ts'

/** Receives one line that says what the build is doing. */
export type OnProgress = (text: string) => void

export type Build = {
  /** Empty at first, and deleted when the build ends. */
  folder: string
  progress: OnProgress
  signal: AbortSignal | undefined
}

export type BuildOptions = { onProgress?: OnProgress; signal?: AbortSignal }

const PROGRESS_FILE = '.progress'
/** With retries, because processes of a killed build may write into the folder until the kernel has ended them. */
const REMOVE_OPTIONS = { recursive: true, force: true, maxRetries: 5, retryDelay: 200 } as const

/**
 * Returns what `find` finds, or else builds it. `find` is called again once the lock is held, because another process may
 * have built it meanwhile. Progress and failure are stored in files, so that other processes can show them.
 */
export async function buildOnce<T>(
  cache: ImageCache,
  key: string,
  options: BuildOptions,
  find: () => Promise<T | undefined>,
  make: (build: Build) => Promise<T>,
): Promise<T> {
  const existing = await find()
  if (existing !== undefined) return existing
  const { onProgress = () => {}, signal } = options
  const held = await lock(pathOf(cache, 'locks', key), () => onProgress(`${key} is being built already`), signal)
  const folder = buildingFolder(cache, key)
  try {
    const builtMeanwhile = await find()
    if (builtMeanwhile !== undefined) return builtMeanwhile
    await rm(folder, REMOVE_OPTIONS)
    await mkdir(folder, { mode: 0o700 })
    await rm(pathOf(cache, 'failed', key), { force: true })
    return await make({ folder, progress: storeProgress(folder, onProgress), signal })
  } catch (error) {
    if (!signal?.aborted) await storeFailure(cache, key, error)
    throw new Error(`failed to build ${key}`, { cause: error })
  } finally {
    // If this fails, the next start removes the folder. The lock is released in any case.
    await rm(folder, REMOVE_OPTIONS).catch((error) =>
      cache.log.warn({ err: error, key }, 'failed to clean up after a build'),
    )
    await held.release()
  }
}

/** For a rebuild: wraps `find` to ignore the present result, but not one that another process builds meanwhile. */
export async function findNewer<T extends { digest: string }>(
  find: () => Promise<T | undefined>,
): Promise<() => Promise<T | undefined>> {
  const before = await find()
  return async () => {
    const found = await find()
    return found?.digest === before?.digest ? undefined : found
  }
}

/** Moves a result out of building/. If the target exists, it has the same content, because it is named by its digest. */
export async function moveIntoPlace(from: string, to: string): Promise<void> {
  await syncTree(from)
  try {
    await rename(from, to)
  } catch (error) {
    if (!['ENOTEMPTY', 'EEXIST'].includes((error as NodeJS.ErrnoException).code ?? '')) throw error
  }
  await syncFolder(path.dirname(to))
}

/** Creates the folders of the cache and removes what killed builds left behind. */
export async function prepareFolders(cache: ImageCache): Promise<void> {
  // Not accessible to other users: unfinished roots contain set-user-id programs and device files.
  for (const folder of FOLDERS) await mkdir(pathOf(cache, folder), { recursive: true, mode: folderMode(folder) })
  for (const key of (await readdir(pathOf(cache, 'building'))).map(keyOfBuilding)) {
    const free = await tryLock(pathOf(cache, 'locks', key))
    if (!free) continue
    try {
      await rm(buildingFolder(cache, key), REMOVE_OPTIONS)
      cache.log.info({ key }, 'removed the folder of a killed build')
    } finally {
      await free.release()
    }
  }
}

/** The keys that any process is building now, with their progress. */
export async function listBuilding(cache: ImageCache): Promise<Map<string, string>> {
  const building = new Map<string, string>()
  for (const key of (await readdir(pathOf(cache, 'building'))).map(keyOfBuilding)) {
    const free = await tryLock(pathOf(cache, 'locks', key))
    await free?.release()
    if (free) continue
    const progress = await readFile(path.join(buildingFolder(cache, key), PROGRESS_FILE), 'utf8').catch(
      () => 'starting',
    )
    building.set(key, progress)
  }
  return building
}

export async function listFailed(cache: ImageCache): Promise<Map<string, string>> {
  const keys = (await readdir(pathOf(cache, 'failed'))).filter((key) => !key.startsWith('.'))
  const reasons = await Promise.all(keys.map((key) => readFile(pathOf(cache, 'failed', key), 'utf8').catch(() => '')))
  return new Map(keys.map((key, index) => [key, reasons[index] || 'unknown reason']))
}

async function storeFailure(cache: ImageCache, key: string, error: unknown): Promise<void> {
  await writeFileDurably(pathOf(cache, 'failed', key), errorText(error).replace(/\s+/g, ' ')).catch((writing) => {
    // Usually both fail because the disk is full. The caller gets the first error.
    cache.log.warn({ err: writing, key }, 'failed to store the reason of a failed build')
  })
}

function storeProgress(folder: string, onProgress: OnProgress): OnProgress {
  return (text) => {
    onProgress(text)
    // Only for display in other processes, so a failure is ignored.
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
