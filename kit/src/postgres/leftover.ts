/** A server that outlived whoever started it: found by its own pid file, stopped the way it wants to be. */
import { readFile } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'

/** Fast shutdown rolls open transactions back and writes a checkpoint. */
const FAST: NodeJS.Signals = 'SIGINT'
/** Immediate shutdown: recovery at the next start replays the log, nothing acknowledged is lost. */
const IMMEDIATE: NodeJS.Signals = 'SIGQUIT'

/** The pid of a live server on this data directory. */
export async function findServer(dir: string): Promise<number | undefined> {
  const text = await readFile(`${dir}/postmaster.pid`, 'utf8').catch(() => '')
  const pid = Number(text.split('\n', 1)[0])
  if (!Number.isInteger(pid) || pid <= 1) return undefined
  // After a reboot the number may belong to anyone: only a postgres on this very directory counts.
  const command = await readFile(`/proc/${pid}/cmdline`, 'utf8').catch(() => '')
  const args = command.split('\0')
  return args[0]?.endsWith('postgres') && args.includes(dir) ? pid : undefined
}

export async function stopServer(dir: string, limitMs: number): Promise<boolean> {
  const pid = await findServer(dir)
  if (pid === undefined) return false
  signal(pid, FAST)
  if (await gone(pid, limitMs)) return true
  signal(pid, IMMEDIATE)
  if (await gone(pid, 5_000)) return true
  throw new Error(`PostgreSQL (pid ${pid}) on ${dir} does not stop; end it with: kill -QUIT ${pid}`)
}

function signal(pid: number, name: NodeJS.Signals): void {
  try {
    process.kill(pid, name)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

async function gone(pid: number, limitMs: number): Promise<boolean> {
  for (const deadline = Date.now() + limitMs; Date.now() < deadline; await delay(10)) {
    if (!(await isAlive(pid))) return true
  }
  return false
}

/** A zombie waits only for its parent to look; it holds nothing. */
async function isAlive(pid: number): Promise<boolean> {
  const stat = await readFile(`/proc/${pid}/stat`, 'utf8').catch(() => undefined)
  return stat !== undefined && !/\) Z/.test(stat)
}
