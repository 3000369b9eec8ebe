/** Room to work in: disk, memory, open files. */
import { constants } from 'node:fs'
import { access, readFile, stat, statfs } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import type { Check, CheckResult, Machine } from './check.ts'

const GIB = 1024 ** 3
/** An image of the catalog and a few sandboxes. */
const DISK_COMFORTABLE_BYTES = 10 * GIB
/** Less does not hold the build of one image. */
const DISK_MINIMUM_BYTES = 2 * GIB
/** A handful of small sandboxes beside PostgreSQL and Warren itself. */
const MEMORY_COMFORTABLE_BYTES = 4 * GIB
/** The smallest shape and Warren itself. */
const MEMORY_MINIMUM_BYTES = 1 * GIB
/** A sandbox takes a dozen in the host agent, each of its streams one or two more. */
const OPEN_FILES_MINIMUM = 4_096

export const resourceChecks = ({ env }: Pick<Machine, 'env'>): Check[] => [
  {
    name: 'data directory',
    needed: 'required',
    run: () => checkFolder(resolve(env.WARREN_DATA_DIR || '.warren'), 'set WARREN_DATA_DIR to a folder'),
  },
  {
    name: 'image cache',
    needed: 'required',
    run: () => checkFolder(cacheFolder(env), 'set XDG_CACHE_HOME to a folder'),
  },
  { name: 'memory', needed: 'recommended', run: async () => judgeMemory(process.availableMemory()) },
  {
    name: 'open files',
    needed: 'recommended',
    run: async () => judgeOpenFiles(await readFile('/proc/self/limits', 'utf8')),
  },
]

export const cacheFolder = (env: NodeJS.ProcessEnv): string =>
  resolve(env.XDG_CACHE_HOME || join(env.HOME || homedir(), '.cache'), 'warren')

/** The folder is made at the first start; until then its nearest parent tells. */
export async function checkFolder(folder: string, setting: string): Promise<CheckResult> {
  const existing = await nearestExisting(folder)
  if (!(await stat(existing)).isDirectory()) {
    return { ok: false, detail: `${folder}: ${existing} is no folder`, fix: `${setting} that can be made` }
  }
  try {
    await access(existing, constants.W_OK | constants.X_OK)
  } catch (error) {
    const why = (error as NodeJS.ErrnoException).code ?? error
    const detail = `${folder}: ${existing} is not writable (${why})`
    return { ok: false, detail, fix: `${setting} you can write to, or run as root` }
  }
  const { bavail, bsize } = await statfs(existing)
  return judgeDisk(folder, bavail * bsize, setting)
}

export function judgeDisk(folder: string, freeBytes: number, setting: string): CheckResult {
  const detail = `${folder}: ${gib(freeBytes)} free`
  if (freeBytes < DISK_MINIMUM_BYTES) {
    return { ok: false, detail, fix: `make room, or ${setting} with ${gib(DISK_COMFORTABLE_BYTES)} free` }
  }
  if (freeBytes >= DISK_COMFORTABLE_BYTES) return { ok: true, detail }
  return { ok: true, detail, note: `little room: ${gib(DISK_COMFORTABLE_BYTES)} are comfortable` }
}

export function judgeMemory(availableBytes: number): CheckResult {
  const detail = `${gib(availableBytes)} available`
  if (availableBytes < MEMORY_MINIMUM_BYTES) {
    return {
      ok: false,
      detail,
      fix: `stop other programs or add memory: ${gib(MEMORY_MINIMUM_BYTES)} hold one sandbox`,
    }
  }
  if (availableBytes >= MEMORY_COMFORTABLE_BYTES) return { ok: true, detail }
  return { ok: true, detail, note: `room for a few small sandboxes: ${gib(MEMORY_COMFORTABLE_BYTES)} are comfortable` }
}

/** The hard limit counts: Node raises its soft one to it. */
export function judgeOpenFiles(limits: string): CheckResult {
  const hard = /^Max open files\s+\S+\s+(\d+|unlimited)/m.exec(limits)?.[1]
  if (hard === undefined) throw new Error('no line "Max open files" in /proc/self/limits')
  if (hard === 'unlimited' || Number(hard) >= OPEN_FILES_MINIMUM) return { ok: true, detail: `up to ${hard}` }
  return {
    ok: false,
    detail: `up to ${hard}, many sandboxes need more than ${OPEN_FILES_MINIMUM}`,
    fix: 'ulimit -Hn 65536 as root before the start, or LimitNOFILE=65536 in the systemd unit',
  }
}

async function nearestExisting(path: string): Promise<string> {
  const isThere = await stat(path).then(
    () => true,
    () => false, // absent, or hidden from us: then a parent tells why it cannot be used
  )
  return isThere || dirname(path) === path ? path : nearestExisting(dirname(path))
}

const gib = (bytes: number): string => `${(bytes / GIB).toFixed(bytes < 100 * GIB ? 1 : 0)} GiB`
