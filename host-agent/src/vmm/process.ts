/** A process by pid and start time: a pid alone may be anybody's after a while. */
import { readFileSync } from 'node:fs'
import { setTimeout as delay } from 'node:timers/promises'

export type ProcessHandle = { pid: number; started: string }

/** Field 22 of /proc/PID/stat: ticks since boot. Gone or a zombie: undefined. */
export function findProcess(pid: number): ProcessHandle | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
    return fields[0] === 'Z' ? undefined : { pid, started: fields[19]! }
  } catch {
    return undefined
  }
}

export const isAlive = (mark: ProcessHandle): boolean => findProcess(mark.pid)?.started === mark.started

/** Ends it for certain; a process in the middle of disk I/O takes a moment to go. */
export async function killProcess(mark: ProcessHandle, limitMs = 10_000): Promise<void> {
  for (const deadline = Date.now() + limitMs; isAlive(mark); await delay(2)) {
    if (Date.now() > deadline) throw new Error(`process ${mark.pid} does not end`)
    try {
      process.kill(mark.pid, 'SIGKILL')
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
    }
  }
}
