/** Carries out deployments as long as the process runs, and supervises the apps that are served. */
import { setTimeout as delay } from 'node:timers/promises'
import type { Deps } from '../deps.ts'
import { carryOut } from './carry-out.ts'
import { claimNext } from './claim.ts'
import { Supervisor } from './supervise.ts'

const POLL_MS = 500

export function startDeployments(deps: Deps): { stop(): Promise<void> } {
  const stopping = new AbortController()
  const running = new Set<Promise<void>>()
  const supervisor = new Supervisor(deps)

  const loop = async (): Promise<void> => {
    while (!stopping.signal.aborted) {
      const claimed = await claimNext(deps).catch((error) => {
        deps.log.warn({ err: error }, 'failed to look for deployments')
        return undefined
      })
      if (claimed) {
        const work = carryOut(deps, claimed, stopping.signal)
          .catch((error) => deps.log.error({ err: error, deployment: claimed.id }, 'failed to carry out a deployment'))
          .finally(() => running.delete(work))
        running.add(work)
      } else await delay(POLL_MS, undefined, { signal: stopping.signal }).catch(() => {})
    }
  }
  const looping = loop()
  supervisor.start()
  return {
    async stop() {
      stopping.abort()
      await Promise.all([looping, supervisor.stop()])
      await Promise.all(running)
    },
  }
}
