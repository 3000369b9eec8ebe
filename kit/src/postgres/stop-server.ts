/**
 * Stops a PostgreSQL server, also one that outlived its launcher or lost its postmaster.
 *
 * A server consists of every `postgres` process whose working directory is the data directory. It is compared by device
 * and inode: a server in a jail has other paths. The pid file is not used: in a jail it has a pid of the jail's own
 * namespace, and after a crash its pid may belong to another program. A killed postmaster may leave a busy child behind,
 * beside which PostgreSQL would refuse to start.
 */
import { readdirSync, readFileSync, statSync } from 'node:fs'
import { rm } from 'node:fs/promises'
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

/** A data directory, also after it was moved or removed. */
export type DirectoryId = { dev: bigint; ino: bigint }

/** Undefined if it does not exist. */
export function findDirectoryId(dir: string): DirectoryId | undefined {
  const found = statSync(dir, { bigint: true, throwIfNoEntry: false })
  return found && { dev: found.dev, ino: found.ino }
}

/**
 * Stops every server process on the data directory. `child` is the process that the caller has started, if it still runs:
 * the postmaster or its jail, which passes signals on and whose end is the end of everything in it.
 */
export async function stopServer(dir: string, id: DirectoryId | undefined, child?: number): Promise<void> {
  const pid = (id && findPostmaster(id)) ?? child
  if (pid !== undefined) {
    for (const { signal, limitMs } of SHUTDOWN_MODES) {
      send(pid, signal)
      send(pid, 'SIGCONT') // A stopped process handles signals only after it continues.
      if (await haveEnded([pid], limitMs)) break
    }
  }
  const rest = [...(child === undefined ? [] : [child]), ...(id ? findProcesses(id) : [])].filter(isAlive)
  // A jail ends right after its program, so it gets a moment before it is killed.
  if (await haveEnded(rest, rest.length === 1 && rest[0] === child ? KILL_LIMIT_MS : 0)) return
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

/** The process that all others of the server descend from. */
export function findPostmaster(id: DirectoryId): number | undefined {
  const pids = findProcesses(id)
  return pids.find((pid) => !pids.includes(findParent(pid)))
}

function findProcesses(id: DirectoryId): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => isPostgresIn(pid, id))
    .map(Number)
    .filter(isAlive)
}

function isPostgresIn(pid: string, { dev, ino }: DirectoryId): boolean {
  try {
    if (readFileSync(`/proc/${pid}/comm`, 'utf8') !== 'postgres\n') return false
    const found = statSync(`/proc/${pid}/cwd`, { bigint: true })
    return found.dev === dev && found.ino === ino
  } catch {
    return false // It has just ended, or it belongs to another user.
  }
}

function findParent(pid: number): number {
  try {
    return Number(/^PPid:\t(\d+)$/m.exec(readFileSync(`/proc/${pid}/status`, 'utf8'))?.[1])
  } catch {
    return 0 // It has just ended.
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
  for (const deadline = Date.now() + limitMs; ; await delay(10)) {
    if (!pids.some(isAlive)) return true
    if (Date.now() >= deadline) return false
  }
}

/** A zombie counts as ended: it only waits to be reaped and holds no resources. */
function isAlive(pid: number): boolean {
  try {
    return !/\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))
  } catch {
    return false
  }
}
