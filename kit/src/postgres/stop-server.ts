/**
 * Stops a PostgreSQL server, also one that outlived its launcher or lost its postmaster.
 *
 * A server consists of every `postgres` process whose working directory is the data directory. The pid file alone is not
 * enough: after a crash its pid may belong to another program, and a killed postmaster may leave a busy child behind.
 * In both cases PostgreSQL would refuse to start.
 */
import { readdirSync, readFileSync, readlinkSync, realpathSync } from 'node:fs'
import { readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'

/** Together well below the 10 s in which everything has to stop. Neither loses an acknowledged transaction. */
const SHUTDOWN_MODES = [
  // Fast: rolls back open transactions and writes a checkpoint.
  { signal: 'SIGINT', limitMs: 2_000 },
  // Immediate: the next start replays the write-ahead log.
  { signal: 'SIGQUIT', limitMs: 1_000 },
] as const
const KILL_LIMIT_MS = 1_000

/** Stops every server process on the data directory. `postmaster` is its pid if the caller knows it. */
export async function stopServer(dir: string, postmaster?: number): Promise<void> {
  const pid = postmaster ?? (await findPostmaster(dir))
  if (pid !== undefined) {
    for (const { signal, limitMs } of SHUTDOWN_MODES) {
      send(pid, signal)
      send(pid, 'SIGCONT') // A stopped process handles signals only after it continues.
      if (await haveEnded([pid], limitMs)) break
    }
  }
  const rest = findProcesses(dir)
  for (const one of rest) send(one, 'SIGKILL')
  if (!(await haveEnded(rest, KILL_LIMIT_MS))) {
    throw new Error(
      `failed to stop PostgreSQL on ${dir}: still running after SIGKILL: pid ${rest.filter(isAlive).join(', ')}`,
    )
  }
}

/** Removes lock files that a crash left and that would keep PostgreSQL from starting. The server must be stopped. */
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
    // The kernel adds the suffix when the directory of a running server was removed.
    return readlinkSync(`/proc/${pid}/cwd`).replace(/ \(deleted\)$/, '') === home
  } catch {
    return false // It has just ended, or it belongs to another user.
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

async function haveEnded(pids: number[], limitMs: number): Promise<boolean> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await delay(10)) {
    if (!pids.some(isAlive)) return true
  }
  return false
}

/** A zombie counts as ended: it only waits to be reaped and holds no resources. */
function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}
