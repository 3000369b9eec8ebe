/**
 * The log of a QEMU process: what it writes to stderr. A guest can make QEMU write, as fast as it likes, by breaking the rules
 * of a device, so the file is cut when it is too long, and only its end is read. While a log is flooded it is looked at ten
 * times per second: it never holds more than QEMU writes in that time, after a first second.
 */
import { readdirSync, statSync, truncateSync } from 'node:fs'
import { open } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

export const LOG_MAX_BYTES = 256 * 1024
const CHECK_MS = 1_000
const FLOOD_CHECK_MS = 100
const TAIL_BYTES = 4_096
/** The VMMs of sandboxes and builds, and of bases (folders.ts, bases/files.ts). */
const VMM_FOLDERS = ['bodies', 'bases']

/** The last lines, on one line. */
export async function readLogTail(file: string): Promise<string> {
  const lines = (await readEnd(file)).trim().split('\n')
  return lines.slice(-3).join(' | ').slice(-500) || 'its log is empty'
}

async function readEnd(file: string): Promise<string> {
  const handle = await open(file).catch(() => undefined)
  if (!handle) return ''
  try {
    const { size } = await handle.stat()
    const { buffer, bytesRead } = await handle.read({
      buffer: Buffer.alloc(TAIL_BYTES),
      position: Math.max(0, size - TAIL_BYTES),
    })
    return buffer.toString('utf8', 0, bytesRead)
  } finally {
    await handle.close()
  }
}

/** Cuts the logs of all VMMs until the signal aborts, also of those that build templates and boot bases. */
export async function limitLogs(dataDir: string, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    const flooded = findLogs(dataDir).filter(limitLog)
    await delay(flooded.length > 0 ? FLOOD_CHECK_MS : CHECK_MS, undefined, { signal }).catch(() => {})
  }
}

/** Synchronous, as the size below: the kernel answers from memory, and a thread for each of a hundred files costs more. */
function findLogs(dataDir: string): string[] {
  return VMM_FOLDERS.map((folder) => path.join(dataDir, folder)).flatMap((folder) =>
    listFolder(folder).map((name) => path.join(folder, name, 'qemu.log')),
  )
}

function listFolder(folder: string): string[] {
  try {
    return readdirSync(folder)
  } catch {
    return [] // There was no VMM of this kind yet.
  }
}

/** Whether the log was too long, and was cut. QEMU appends to the file, so it continues at its new end. */
export function limitLog(file: string): boolean {
  try {
    const size = statSync(file, { throwIfNoEntry: false })?.size ?? 0
    if (size <= LOG_MAX_BYTES) return false
    truncateSync(file)
    return true
  } catch {
    return false // The VMM was deleted meanwhile, or the disk fails, which must not end this loop.
  }
}
