/** Processes identified by pid and start time: a pid alone is reused after a while. */
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

export type ProcessHandle = { pid: number; started: string }

/** The start time is field 22 of /proc/PID/stat, in ticks since boot. Undefined if the process is gone or a zombie. */
export function findProcess(pid: number): ProcessHandle | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' ? undefined : { pid, started: fields[19]! }
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
