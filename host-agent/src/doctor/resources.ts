/** Checks of disk space, memory and the limit of open files. */
import { constants } from 'node:fs'
import { access, readFile, stat, statfs } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { diskLevels, findShortage, mib, readDiskSpace, reserveBytes } from '@warren/kit/disk-space'
import { readCacheDir } from '../images/layout.ts'
import type { Check, CheckResult, Machine } from './check.ts'

const GIB = 1024 ** 3
/** Enough for an image and a few sandboxes. */
const DISK_COMFORTABLE_BYTES = 10 * GIB
/** The build of one image needs this much. */
const DISK_MINIMUM_BYTES = 2 * GIB
/** Enough for a few small sandboxes beside PostgreSQL and Warren itself. */
const MEMORY_COMFORTABLE_BYTES = 4 * GIB
/** Enough for one sandbox of the smallest shape and Warren itself. */
const MEMORY_MINIMUM_BYTES = 1 * GIB
/** The host agent holds about a dozen open files per sandbox, and one or two more per stream. */
const OPEN_FILES_MINIMUM = 4_096

export const resourceChecks = ({ env }: Pick<Machine, 'env'>): Check[] => [
  {
    name: 'data directory',
    needed: 'required',
    run: () => checkFolder(resolve(env.WARREN_DATA_DIR || '.warren'), 'set WARREN_DATA_DIR to a folder'),
  },
  {
    name: 'space for sandboxes',
    needed: 'recommended',
    run: () => checkFloor(resolve(env.WARREN_DATA_DIR || '.warren'), Number(env.WARREN_DISK_FLOOR_MIB || 0)),
  },
  ...(env.DATABASE_URL
    ? []
    : [
        {
          name: 'database volume',
          needed: 'recommended' as const,
          run: () => checkDatabaseVolume(env),
        },
      ]),
  {
    name: 'image cache',
    needed: 'required',
    run: () => checkFolder(readCacheDir(env), 'set WARREN_CACHE_DIR to a folder'),
  },
  { name: 'memory', needed: 'recommended', run: async () => checkMemory(process.availableMemory()) },
  {
    name: 'open files',
    needed: 'recommended',
    run: async () => checkOpenFiles(await readFile('/proc/self/limits', 'utf8')),
  },
]

/** Before the first start the folder does not exist; then its nearest existing parent is checked. */
export async function checkFolder(folder: string, setting: string): Promise<CheckResult> {
  const existing = await nearestExisting(folder)
  if (!(await stat(existing)).isDirectory()) {
    return { ok: false, detail: `${folder}: ${existing} is not a folder`, fix: `${setting} that can be created` }
  }
  try {
    await access(existing, constants.W_OK | constants.X_OK)
  } catch (error) {
    const why = (error as NodeJS.ErrnoException).code ?? error
    const detail = `${folder}: ${existing} is not writable (${why})`
    return { ok: false, detail, fix: `${setting} you can write to, or run as root` }
  }
  const { bavail, bsize } = await statfs(existing)
  return checkDisk(folder, bavail * bsize, setting)
}

/** Whether creates would be refused, and from when on. */
export async function checkFloor(folder: string, floorMib: number): Promise<CheckResult> {
  const space = readDiskSpace(folder)
  const levels = diskLevels(space, floorMib)
  const shortage = findShortage(space, levels)
  if (shortage !== undefined) {
    return { ok: false, detail: shortage, fix: 'free some space: until then creates, forks and builds are refused' }
  }
  const detail = `${gib(space.freeBytes - levels.floorBytes)} above the ${gib(levels.floorBytes)} that must stay free`
  return { ok: true, detail: `${detail}; guests that write are stopped below ${gib(levels.stopBytes)}` }
}

/** A separate volume is safe from sandboxes; otherwise a file keeps some space for PostgreSQL. */
export async function checkDatabaseVolume(env: NodeJS.ProcessEnv): Promise<CheckResult> {
  const dataDir = resolve(env.WARREN_DATA_DIR || '.warren')
  const folder = env.WARREN_DATABASE_DIR ? resolve(env.WARREN_DATABASE_DIR) : dataDir
  const { totalBytes, freeBytes } = readDiskSpace(folder)
  const detail = `${folder}: ${gib(freeBytes)} free`
  const reserved = reserveBytes(totalBytes)
  if (freeBytes < reserved) return { ok: false, detail, fix: 'free some space: PostgreSQL is about to run out of it' }
  const [own, others] = await Promise.all(
    [folder, dataDir].map(async (one) => (await stat(await nearestExisting(one))).dev),
  )
  if (own !== others) return { ok: true, detail: `${detail}, on another volume than sandboxes` }
  const note = `shared with sandboxes: ${mib(reserved)} MiB are kept for PostgreSQL; WARREN_DATABASE_DIR can be another volume`
  return { ok: true, detail, note }
}

export function checkDisk(folder: string, freeBytes: number, setting: string): CheckResult {
  const detail = `${folder}: ${gib(freeBytes)} free`
  if (freeBytes < DISK_MINIMUM_BYTES) {
    return { ok: false, detail, fix: `free some space, or ${setting} with ${gib(DISK_COMFORTABLE_BYTES)} free` }
  }
  if (freeBytes >= DISK_COMFORTABLE_BYTES) return { ok: true, detail }
  return { ok: true, detail, note: `little free space: ${gib(DISK_COMFORTABLE_BYTES)} or more is recommended` }
}

export function checkMemory(availableBytes: number): CheckResult {
  const detail = `${gib(availableBytes)} available`
  if (availableBytes < MEMORY_MINIMUM_BYTES) {
    return {
      ok: false,
      detail,
      fix: `stop other programs or add memory: one sandbox needs ${gib(MEMORY_MINIMUM_BYTES)}`,
    }
  }
  if (availableBytes >= MEMORY_COMFORTABLE_BYTES) return { ok: true, detail }
  return {
    ok: true,
    detail,
    note: `enough for a few small sandboxes: ${gib(MEMORY_COMFORTABLE_BYTES)} or more is recommended`,
  }
}

/** Checks the hard limit, because Node raises its soft limit to it. */
export function checkOpenFiles(limits: string): CheckResult {
  const hard = /^Max open files\s+\S+\s+(\d+|unlimited)/m.exec(limits)?.[1]
  if (hard === undefined) throw new Error('no line "Max open files" in /proc/self/limits')
  if (hard === 'unlimited' || Number(hard) >= OPEN_FILES_MINIMUM) return { ok: true, detail: `up to ${hard}` }
  return {
    ok: false,
    detail: `up to ${hard}; many sandboxes need at least ${OPEN_FILES_MINIMUM}`,
    fix: 'ulimit -Hn 65536 as root before the start, or LimitNOFILE=65536 in the systemd unit',
  }
}

async function nearestExisting(path: string): Promise<string> {
  const isThere = await stat(path).then(
    () => true,
    () => false, // Absent or not accessible. The check of its parent then reports the reason.
  )
  return isThere || dirname(path) === path ? path : nearestExisting(dirname(path))
}

const gib = (bytes: number): string => `${(bytes / GIB).toFixed(bytes < 100 * GIB ? 1 : 0)} GiB`
