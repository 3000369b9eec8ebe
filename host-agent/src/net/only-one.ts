/**
 * One netd per instance at a time. The netd of a killed host agent may still be working off its last requests while the
 * next host agent reaps: what it made after that would belong to nobody. So the next one waits until it is gone.
 *
 * The lock is a socket name without a file, which the kernel frees with its process, however that ends.
 */
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

const WAIT_LIMIT_MS = 15_000
const POLL_MS = 20

export async function becomeOnlyOne(instance: string): Promise<void> {
  for (const deadline = Date.now() + WAIT_LIMIT_MS; ; await sleep(POLL_MS)) {
    try {
      return await take(`\0warren-netd-${instance}`)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
      if (Date.now() > deadline) throw new Error(`another netd of instance ${instance} does not end`, { cause: error })
    }
  }
}

/** Held until the process ends; whoever connects is sent away. */
function take(name: string): Promise<void> {
  const { promise, resolve, reject } = Promise.withResolvers<void>()
  createServer((socket) => socket.destroy())
    .once('error', reject)
    .listen(name, resolve)
  return promise
}
