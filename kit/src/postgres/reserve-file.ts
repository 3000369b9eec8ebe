/**
 * A file beside the database that takes space for PostgreSQL: when other programs have filled the volume, it is deleted, and
 * PostgreSQL can write on. It is written again when there is space.
 *
 * PostgreSQL stops when it cannot write its log, so this must happen before its first failed write: the volume is looked at ten
 * times per second, and the file is deleted while there is as much space left as it has itself.
 */
import { execFile } from 'node:child_process'
import { chmod, open, rm, stat } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { mib, readDiskSpace, reserveBytes } from '../disk-space.ts'

export type Reserve = { stop(): Promise<void> }

const MIB = 1024 * 1024
/** In sizes of the file: it must not be written and deleted in turns. */
const WRITE_FACTOR = 4
const LOOK_MS = 100
const CHUNK = Buffer.alloc(MIB)

const fileIn = (folder: string): string => path.join(folder, 'postgres.reserve')

/** Before anything else of a start is written: on a full volume nothing starts without this space. */
export const releaseReserve = async (folder: string, report: (text: string) => void): Promise<void> => {
  await release(fileIn(folder), report)
}

/**
 * `folder`: on the volume of the database. `report` gets a sentence for the operator. It must run also while there is no server:
 * one that ended because the volume was full needs the space to start again.
 */
export function keepReserve(folder: string, report: (text: string) => void): Reserve {
  const stopping = new AbortController()
  const running = run(fileIn(folder), report, stopping.signal)
  return {
    async stop() {
      stopping.abort()
      await running
    },
  }
}

async function run(file: string, report: (text: string) => void, signal: AbortSignal): Promise<void> {
  let failure = ''
  while (!signal.aborted) {
    try {
      await look(file, report, signal)
      failure = ''
    } catch (error) {
      const text = (error as Error).message
      if (text !== failure) report(`failed to keep the space that is reserved for PostgreSQL: ${text}`)
      failure = text
    }
    await delay(LOOK_MS, undefined, { signal }).catch(() => {}) // The loop ends.
  }
}

async function look(file: string, report: (text: string) => void, signal?: AbortSignal): Promise<void> {
  if (await release(file, report)) return
  const { totalBytes, freeBytes } = readDiskSpace(path.dirname(file))
  const bytes = reserveBytes(totalBytes)
  if ((await sizeOf(file)) < bytes && freeBytes > bytes * WRITE_FACTOR) await write(file, bytes, signal)
}

async function release(file: string, report: (text: string) => void): Promise<boolean> {
  const { totalBytes, freeBytes } = readDiskSpace(path.dirname(file))
  const held = await sizeOf(file)
  if (held === 0 || freeBytes >= reserveBytes(totalBytes)) return false
  await rm(file, { force: true })
  report(
    `the disk of the database is full: released ${mib(held)} MiB that were reserved for PostgreSQL. ` +
      'Free some space; otherwise Warren stops working',
  )
  return true
}

const sizeOf = (file: string): Promise<number> =>
  stat(file).then(
    ({ size }) => size,
    () => 0, // It does not exist.
  )

/** Real blocks, not a hole. */
async function write(file: string, bytes: number, signal?: AbortSignal): Promise<void> {
  try {
    await rm(file, { force: true })
    await promisify(execFile)('fallocate', ['-l', `${bytes}`, file])
    await chmod(file, 0o600)
  } catch {
    await writeZeros(file, bytes, signal) // There is no such program, or the file system cannot do it.
  }
}

async function writeZeros(file: string, bytes: number, signal?: AbortSignal): Promise<void> {
  const handle = await open(file, 'w', 0o600)
  try {
    for (let written = 0; written < bytes && !signal?.aborted; written += CHUNK.length) await handle.write(CHUNK)
    await handle.sync()
  } catch (error) {
    await rm(file, { force: true })
    throw error
  } finally {
    await handle.close()
  }
}
