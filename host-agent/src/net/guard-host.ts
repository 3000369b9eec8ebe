/**
 * Checks the host's side of the network every few seconds: restores the host's table, its address for sandboxes and forwarding
 * when another program changed or removed them, closes the addresses and networks that this machine has got meanwhile, and follows
 * changes of its name servers.
 *
 * Until the table is restored nothing opens: the tables in the slots close the ports and the networks of the host as well.
 * Without the host's table sandboxes have no internet, because their addresses are not translated.
 */
import { setTimeout as sleep } from 'node:timers/promises'
import type { Log } from '@warren/kit/log'
import type { Netd } from './netd-client.ts'
import type { HostCheck, HostSettings } from './netd-protocol.ts'

/** Sandboxes are offline for so long after a flush. */
const CHECK_MS = 2_000

export type HostGuardDeps = {
  netd: Pick<Netd, 'request'>
  log: Pick<Log, 'warn'>
  settings: () => HostSettings
  onCheck: (check: HostCheck) => Promise<void>
}

export class HostGuard {
  readonly #stop = new AbortController()
  readonly #running: Promise<void>

  constructor(deps: HostGuardDeps) {
    this.#running = this.#run(deps)
  }

  async close(): Promise<void> {
    this.#stop.abort()
    await this.#running
  }

  async #run(deps: HostGuardDeps): Promise<void> {
    const { signal } = this.#stop
    for (;;) {
      await sleep(CHECK_MS, undefined, { signal, ref: false }).catch(() => {}) // Ends early with the signal.
      if (signal.aborted) return
      try {
        await checkOnce(deps)
      } catch (error) {
        if (!signal.aborted) deps.log.warn({ err: error }, 'failed to check the network of the host; trying again')
      }
    }
  }
}

async function checkOnce({ netd, log, settings, onCheck }: HostGuardDeps): Promise<void> {
  const check = await netd.request('checkHost', settings())
  const { restored } = check
  if (restored.length > 0) log.warn(`restored after a change by another program: ${restored.join(', ')}`)
  await onCheck(check)
}
