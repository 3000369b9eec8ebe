/**
 * Gives a service its folders. They are made and handed over by root at every start, which also repairs what an earlier
 * version left, an interrupted hand-over, and files that the operator restored as root.
 */
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { chmod, mkdir } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { withParentDeathSignal } from '../parent-death-signal.ts'
import { JAIL_BINARY } from './confine.ts'
import type { ServiceUser } from './services.ts'

const run = promisify(execFile)
const KILL_LIMIT_MS = 5_000

/**
 * Missing folders are created. Processes of the user must have ended (endProcesses), so that nothing changes the folders
 * meanwhile. Only the folders themselves may be links, to another volume.
 */
export async function handOver(user: ServiceUser, folders: readonly string[]): Promise<void> {
  for (const folder of folders) await mkdir(folder, { recursive: true, mode: 0o700 })
  try {
    // It ends with this process: the next start may hand the folders over to another user.
    const args = ['hand-over', `${user.uid}`, `${user.gid}`, ...folders]
    await run(...withParentDeathSignal('SIGKILL', JAIL_BINARY, args))
  } catch (error) {
    const { stderr, message } = error as Error & { stderr?: string }
    throw new Error(`failed to give ${folders.join(', ')} to ${user.service}: ${stderr?.trim() || message}`)
  }
  for (const folder of folders) await chmod(folder, 0o700)
}

/** Kills every process of a service's user, which a killed predecessor may have left, and waits until they are gone. */
export async function endProcesses({ uid, service }: Pick<ServiceUser, 'uid' | 'service'>): Promise<void> {
  for (const deadline = Date.now() + KILL_LIMIT_MS; Date.now() < deadline; await delay(10)) {
    const pids = listProcesses(uid)
    if (pids.length === 0) return
    for (const pid of pids) kill(pid)
  }
  throw new Error(`processes of ${service} still run after SIGKILL: pid ${listProcesses(uid).join(', ')}`)
}

/** Of `count` users from `uid` on. Zombies hold no resources; they only wait to be collected. */
export function listProcesses(uid: number, count = 1): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        const status = readFileSync(`/proc/${pid}/status`, 'utf8')
        const owner = Number(/^Uid:\t(\d+)\t/m.exec(status)?.[1])
        return owner >= uid && owner < uid + count && !/^State:\t[ZX]/m.test(status)
      } catch {
        return false // It has just ended.
      }
    })
    .map(Number)
}

function kill(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}
