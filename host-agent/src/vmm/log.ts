/**
 * The log of a QEMU process: what it writes to stderr. A guest can make QEMU write, as fast as it likes, by breaking the rules
 * of a device, so the file is cut when it is too long, and only its end is read.
 */
import { glob, open, stat, truncate } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

export const LOG_MAX_BYTES = 256 * 1024
const CHECK_MS = 5_000
const TAIL_BYTES = 4_096
/** Of sandboxes and builds, and of bases (folders.ts, bases/files.ts). */
const LOGS = ['bodies/*/qemu.log', 'bases/*/qemu.log']

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
    for await (const file of glob(LOGS, { cwd: dataDir })) await limitLog(path.join(dataDir, file))
    await delay(CHECK_MS, undefined, { signal }).catch(() => {})
  }
}

/** QEMU appends to the file, so it continues at its new end. */
export async function limitLog(file: string): Promise<void> {
  const found = await stat(file).catch(() => undefined) // The VMM may have been deleted meanwhile.
  if (found && found.size > LOG_MAX_BYTES) await truncate(file).catch(() => {})
}
