/**
 * Named network namespaces: a file, usually below /run/netns, on which the namespace is mounted. The mount keeps the
 * namespace alive without a process in it.
 *
 * setns(2) acts on a thread. Everything between entering a namespace and coming back is synchronous, so no other code of
 * the process runs inside it. A thread of libuv's pool inherits the namespace of the thread that starts it: a process
 * that enters namespaces calls `startThreadPool` first.
 */
import { closeSync, mkdirSync, openSync, readdirSync, statSync, unlinkSync, writeFileSync } from 'node:fs'
import { stat } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { bindMount, detachMount, shareMount } from './mount.ts'
import { bindSystemCall, hasCode } from './system-call.ts'

const CLONE_NEWNET = 0x4000_0000
const OWN_NAMESPACE = '/proc/thread-self/ns/net'
/** libuv's default. */
const POOL_THREADS = 4

const setns = bindSystemCall('int setns(int fd, int type)')
const unshare = bindSystemCall('int unshare(int flags)')

/** Moves this thread into a new, empty network namespace. */
export const unshareNetwork = (): void => void unshare(CLONE_NEWNET)

/** Starts all threads of libuv's pool in the current namespace: each lookup occupies one of them for a moment. */
export async function startThreadPool(): Promise<void> {
  await Promise.all(Array.from({ length: POOL_THREADS }, () => stat('/')))
}

/** The namespace that this thread is in when the object is created. */
export class HostNamespace {
  /** Stays open for the life of the process: it is needed to come back. */
  readonly fd = openSync(OWN_NAMESPACE, 'r')

  /** Creates a namespace under the name `path` and runs `work` in it. */
  create<T>(path: string, work: () => T): T {
    prepareFolder(dirname(path))
    writeFileSync(path, '', { flag: 'wx', mode: 0o444 })
    return this.#runElsewhere(unshareNetwork, () => {
      bindMount(OWN_NAMESPACE, path)
      return work()
    })
  }

  /** Runs `work` in the namespace that is mounted on `path`. */
  enter<T>(path: string, work: () => T): T {
    const fd = openSync(path, 'r')
    try {
      return this.#runElsewhere(() => setns(fd, CLONE_NEWNET), work)
    } finally {
      closeSync(fd)
    }
  }

  #runElsewhere<T>(leave: () => void, work: () => T): T {
    leave()
    try {
      return work()
    } finally {
      this.#comeBack()
    }
  }

  #comeBack(): void {
    try {
      setns(this.fd, CLONE_NEWNET)
    } catch (error) {
      // Code that ran next would change a sandbox's network instead of the host's. The host agent restarts the process.
      process.stderr.write(`failed to leave the network namespace of a sandbox: ${error}\n`)
      process.abort()
    }
  }
}

/**
 * Makes the folder a shared mount before the first namespace is mounted in it, as iproute2 does. Otherwise the first
 * `ip netns add` on the machine would do it later, and our mounts below it would stay hidden under that new mount, where
 * they cannot be unmounted. A folder that already contains namespaces stays unchanged.
 */
function prepareFolder(folder: string): void {
  mkdirSync(folder, { recursive: true, mode: 0o755 })
  try {
    shareMount(folder)
  } catch (error) {
    if (!hasCode(error, 'EINVAL')) throw error
    const { dev } = statSync(folder)
    if (readdirSync(folder).some((name) => findDevice(join(folder, name)) !== dev)) return
    bindMount(folder, folder)
    shareMount(folder)
  }
}

/** Undefined when the file was removed in the meantime. */
const findDevice = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.dev

/**
 * Removes the name of a namespace. The kernel frees a namespace without mount and without users, together with its links,
 * addresses, routes and rules. Removing the file also removes copies of the mount in other mount namespaces. Safe to
 * repeat, and for a file that a killed process left without a mount.
 */
export function removeNamespace(path: string): void {
  try {
    detachMount(path)
  } catch (error) {
    // EINVAL: nothing is mounted on the file.
    if (!hasCode(error, 'EINVAL', 'ENOENT')) throw error
  }
  try {
    unlinkSync(path)
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
  }
}
