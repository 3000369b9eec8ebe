/** Processes identified by pid and start time: a pid alone is reused after a while. */
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

export type ProcessHandle = { pid: number; started: string }

/** Linux on x86-64. */
const PAGE_BYTES = 4_096

/** Undefined if the process is gone or a zombie. */
export function findProcess(pid: number): ProcessHandle | undefined {
  const found = readStat(pid)
  return found && { pid, started: found.started }
}

/** Resident memory, with pages that it shares with other processes. Undefined if the process is gone. */
export function findResidentBytes({ pid, started }: ProcessHandle): number | undefined {
  const found = readStat(pid)
  return found?.started === started ? found.residentBytes : undefined
}

/** Upper limit of what a pause writes: memory that the process does not share, of the guest and of QEMU itself. */
export function findPrivateBytes({ pid }: ProcessHandle): number {
  try {
    return Number(/^RssAnon:\s+(\d+) kB$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1] ?? 0) * 1024
  } catch {
    return 0 // No such process: the pause fails for that reason.
  }
}

/** Field 22 of /proc/PID/stat is the start time in ticks since boot, field 24 the number of resident pages. */
function readStat(pid: number): { started: string; residentBytes: number } | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    if (fields[0] === 'Z') return undefined
    return { started: fields[19]!, residentBytes: Number(fields[21]) * PAGE_BYTES }
  } catch {
    return undefined // No such process.
  }
}

export const isAlive = (handle: ProcessHandle): boolean => findProcess(handle.pid)?.started === handle.started

/** Settles when the process is gone. One in the middle of disk I/O takes a moment to exit. */
export async function killProcess(handle: ProcessHandle, limitMs = 10_000): Promise<void> {
  for (const deadline = Date.now() + limitMs; isAlive(handle); await delay(2)) {
    if (Date.now() > deadline) throw new Error(`process ${handle.pid} did not exit within ${limitMs} ms of SIGKILL`)
    try {
      process.kill(handle.pid, 'SIGKILL')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
}
