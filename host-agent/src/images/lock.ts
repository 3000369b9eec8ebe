/**
 * flock(2): one holder among all processes and all callers in a process, freed by the kernel when the holder dies, by
 * kill -9 too. Node opens files close-on-exec, so no child keeps the lock alive.
 */
import { type FileHandle, open } from 'node:fs/promises'
import { setTimeout as sleep } from 'node:timers/promises'
import { getSystemErrorName } from 'node:util'
import koffi from 'koffi'

const LOCK_EX = 2
const LOCK_NB = 4
const POLL_MS = 100

const flock = koffi.load(null).func('int flock(int fd, int operation)')

export type Lock = { release(): Promise<void> }

/** Undefined when somebody else holds it. */
export async function tryLock(file: string): Promise<Lock | undefined> {
  const handle = await open(file, 'a', 0o600)
  try {
    if (take(handle)) return { release: () => handle.close() }
  } catch (error) {
    await handle.close()
    throw new Error(`could not lock ${file}`, { cause: error })
  }
  await handle.close()
  return undefined
}

/** Waits for it; `onWait` is called once when it is not free at first. */
export async function lock(file: string, onWait: () => void, signal?: AbortSignal): Promise<Lock> {
  for (let tries = 0; ; tries++) {
    signal?.throwIfAborted()
    const taken = await tryLock(file)
    if (taken) return taken
    if (tries === 0) onWait()
    await sleep(POLL_MS, undefined, { signal })
  }
}

function take(handle: FileHandle): boolean {
  if (flock(handle.fd, LOCK_EX | LOCK_NB) === 0) return true
  const name = getSystemErrorName(-koffi.errno())
  if (name === 'EAGAIN' || name === 'EINTR') return false
  throw new Error(`flock: ${name}`)
}
