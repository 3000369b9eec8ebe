/**
 * One netd per instance at a time. The netd of a killed host agent may still be working off its last requests while the
 * next host agent reaps: what it made after that would belong to nobody. So the next one waits until it is gone. Who
 * tidies up where no host agent runs takes its place meanwhile: none begins its work until that is done.
 *
 * The lock is a socket name without a file, which the kernel frees with its process, however that ends.
 */
import { createServer } from 'node:net'
import { setTimeout as sleep } from 'node:timers/promises'

const WAIT_LIMIT_MS = 15_000
const POLL_MS = 20

/** Until the process ends, or until what it gives is called. */
export async function becomeOnlyOne(instance: string): Promise<() => void> {
  for (const deadline = Date.now() + WAIT_LIMIT_MS; ; await sleep(POLL_MS)) {
    try {
      return await take(`\0warren-netd-${instance}`)
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code !== 'EADDRINUSE') throw error
      if (Date.now() > deadline)
        throw new Error(`another netd of instance ${instance}, or a \`warren snapshots gc\`, does not end`, {
          cause: error,
        })
    }
  }
}

/** Whoever connects is sent away. */
function take(name: string): Promise<() => void> {
  const { promise, resolve, reject } = Promise.withResolvers<() => void>()
  const server = createServer((socket) => socket.destroy())
  server.once('error', reject).listen(name, () => resolve(() => server.close()))
  return promise
}
