/**
 * Named network namespaces: a file in /run/netns with the namespace mounted on it keeps it alive without a process.
 *
 * setns acts on a thread. Everything between going in and coming back is synchronous, so no other code of this process
 * ever runs inside. A thread of libuv's pool inherits the namespace of whoever starts it: netd starts them first.
 */
import { closeSync, mkdirSync, openSync, readdirSync, statSync, unlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { NETNS_FOLDER } from '../names.ts'
import { bindMount, detachMount, hasCode, setns, shareMount, unshareNetwork } from './libc.ts'

/** The leader's name would do too, but this one says what is meant. */
const OWN_NAMESPACE = '/proc/thread-self/ns/net'

export class HostNamespace {
  /** Open for as long as netd lives: it is the way back. */
  readonly fd = openSync(OWN_NAMESPACE, 'r')

  /** Makes a namespace, gives it its name, and runs `work` in it. */
  create<T>(path: string, work: () => T): T {
    openFolder()
    writeFileSync(path, '', { flag: 'wx', mode: 0o444 })
    return this.#visit(unshareNetwork, () => {
      bindMount(OWN_NAMESPACE, path)
      return work()
    })
  }

  /** Runs `work` in the namespace of that name. */
  enter<T>(path: string, work: () => T): T {
    const fd = openSync(path, 'r')
    try {
      return this.#visit(() => setns(fd), work)
    } finally {
      closeSync(fd)
    }
  }

  #visit<T>(go: () => void, work: () => T): T {
    go()
    try {
      return work()
    } finally {
      this.#comeBack()
    }
  }

  #comeBack(): void {
    try {
      setns(this.fd)
    } catch (error) {
      // Whatever ran next would act on a sandbox instead of the host. The host agent starts another netd.
      process.stderr.write(`netd cannot leave a sandbox's namespace: ${error}\n`)
      process.abort()
    }
  }
}

/**
 * The folder is a mount of its own from the start, as iproute2 wants it: the first `ip netns add` of a machine would
 * otherwise put one over it, and the names in it could not be taken away any more. Where there are some already it is
 * left as it is, for the same reason.
 */
function openFolder(): void {
  mkdirSync(NETNS_FOLDER, { recursive: true, mode: 0o755 })
  try {
    shareMount(NETNS_FOLDER)
  } catch (error) {
    if (!hasCode(error, 'EINVAL')) throw error
    const { dev } = statSync(NETNS_FOLDER)
    if (readdirSync(NETNS_FOLDER).some((name) => deviceOf(join(NETNS_FOLDER, name)) !== dev)) return
    bindMount(NETNS_FOLDER, NETNS_FOLDER)
    shareMount(NETNS_FOLDER)
  }
}

/** Undefined when it is gone by now. */
const deviceOf = (path: string): number | undefined => statSync(path, { throwIfNoEntry: false })?.dev

/**
 * Without its mount and without users a namespace is freed by the kernel, with the links, addresses, routes and rules
 * in it. Removing the file also takes away copies of the mount in other mount namespaces. Safe to repeat, and for a
 * file that a killed netd left without a mount.
 */
export function removeNamespace(path: string): void {
  try {
    detachMount(path)
  } catch (error) {
    // EINVAL: nothing is mounted there.
    if (!hasCode(error, 'EINVAL', 'ENOENT')) throw error
  }
  try {
    unlinkSync(path)
  } catch (error) {
    if (!hasCode(error, 'ENOENT')) throw error
  }
}
