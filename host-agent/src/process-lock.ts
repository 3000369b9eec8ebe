/**
 * Ensures that one netd and one VMM launcher run per instance. Those of a killed host agent may still be working off
 * their last requests when the next host agent starts. What they create after it has reaped leftovers would never be
 * removed, so the new process waits until the old one has exited.
 *
 * `warren snapshots gc`, which runs without a host agent, holds the lock of netd meanwhile: no host agent starts its work
 * until the collection is done.
 *
 * Another lock is for the Warrens of one machine: only one of them changes at a time what they share.
 *
 * A lock is an abstract socket name, which the kernel frees when the process exits for any reason.
 */
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

const WAIT_LIMIT_MS = 15_000
const POLL_MS = 20

/** Holds the lock until the process exits or the returned function is called. */
export const acquireProcessLock = (name: 'netd' | 'launcher', instance: string): Promise<() => void> =>
  acquire(
    `${name}-${instance}`,
    `another ${name} of instance ${instance}, or a \`warren snapshots gc\`, did not exit within ${WAIT_LIMIT_MS} ms`,
  )

/**
 * For what the Warrens of one machine share. The names of abstract sockets, like the addresses and rules that this protects,
 * belong to a network namespace.
 */
export const lockSharedNetwork = (): Promise<() => void> =>
  acquire('network', `another Warren on this machine did not finish its change of the network in ${WAIT_LIMIT_MS} ms`)

async function acquire(name: string, timeoutMessage: string): Promise<() => void> {
  for (const deadline = Date.now() + WAIT_LIMIT_MS; ; await sleep(POLL_MS)) {
    try {
      return await listen(`\0warren-${name}`)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
      if (Date.now() >= deadline) throw new Error(timeoutMessage, { cause: error })
    }
  }
}

/** Connections are closed: the socket exists only for its name. */
function listen(name: string): Promise<() => void> {
  const { promise, resolve, reject } = Promise.withResolvers<() => void>()
  const server = createServer((socket) => socket.destroy())
  server.once('error', reject).listen(name, () => resolve(() => server.close()))
  return promise
}
