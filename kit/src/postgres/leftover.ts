/**
 * Ending a server, also one that outlived whoever started it or lost its own postmaster.
 *
 * A server is all its processes: every `postgres` whose working directory is the data directory. The pid file alone
 * says too little. After a crash its number may be anybody's, upon which PostgreSQL refuses to start; and a postmaster
 * that was killed may leave a busy child behind, which has the same effect.
 */
import { readdirSync, readFileSync, readlinkSync, realpathSync } from 'node:fs'
import { readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

/** Together well under the 10 s in which everything has to be stopped. Nothing acknowledged is lost in either way. */
const WAYS = [
  // Fast: open transactions are rolled back, a checkpoint is written.
  { signal: 'SIGINT', limitMs: 2_000 },
  // Immediate: the next start replays the log.
  { signal: 'SIGQUIT', limitMs: 1_000 },
] as const
const KILL_LIMIT_MS = 1_000

/** Ends whatever runs on the data directory; `postmaster` is its pid where the caller knows it. */
export async function stopServer(dir: string, postmaster?: number): Promise<void> {
  const pid = postmaster ?? (await findPostmaster(dir))
  if (pid !== undefined) {
    for (const { signal, limitMs } of WAYS) {
      send(pid, signal)
      send(pid, 'SIGCONT') // One that was halted would never get to it.
      if (await gone([pid], limitMs)) break
    }
  }
  const rest = findProcesses(dir)
  for (const one of rest) send(one, 'SIGKILL')
  if (!(await gone(rest, KILL_LIMIT_MS))) {
    throw new Error(`PostgreSQL on ${dir} does not end, not even killed: pid ${rest.filter(isAlive).join(', ')}`)
  }
}

/** To be called when nothing runs there any more: what a crash left would keep PostgreSQL from starting. */
export async function removeLocks(dir: string, socketFile: string): Promise<void> {
  await rm(path.join(dir, 'postmaster.pid'), { force: true })
  await rm(`${socketFile}.lock`, { force: true })
}

async function findPostmaster(dir: string): Promise<number | undefined> {
  const text = await readFile(path.join(dir, 'postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number.parseInt(text, 10)
  return findProcesses(dir).find((one) => one === pid)
}

function findProcesses(dir: string): number[] {
  const home = realPath(dir)
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => isPostgresIn(pid, home))
    .map(Number)
    .filter(isAlive)
}

function isPostgresIn(pid: string, home: string): boolean {
  try {
    if (readFileSync(`/proc/${pid}/comm`, 'utf8') !== 'postgres\n') return false
    // The kernel adds this when somebody removed the directory under a running server.
    return readlinkSync(`/proc/${pid}/cwd`).replace(/ \(deleted\)$/, '') === home
  } catch {
    return false // It ended while we looked, or is another user's.
  }
}

function realPath(dir: string): string {
  try {
    return realpathSync(dir)
  } catch {
    return path.resolve(dir)
  }
}

function send(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

async function gone(pids: number[], limitMs: number): Promise<boolean> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await delay(10)) {
    if (!pids.some(isAlive)) return true
  }
  return false
}

/** A zombie waits only for its parent to look; it holds nothing. */
function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}
