/**
 * The host agent's client of netd (netd/main.ts). A request that failed because netd died may have been carried out
 * partly: what it did is in the kernel, to be released or reaped.
 */
import { join } from 'node:path'
import { OnDemandProcess } from '../rpc/on-demand-process.ts'
import { checkInstance } from './names.ts'
import type { NetdCalls } from './netd-protocol.ts'

/** Most requests take milliseconds; releasing a slot waits up to 5 s for the kernel. */
const REQUEST_LIMIT_MS = 20_000
/** These release many slots: they wait up to 30 s and then delete links one by one. */
const LONG_REQUEST_LIMIT_MS = 120_000

export class Netd extends OnDemandProcess<NetdCalls> {
  constructor(instance: string) {
    super({
      name: 'netd',
      capabilities: 'netd',
      program: join(import.meta.dirname, 'netd/main.ts'),
      args: [checkInstance(instance)],
      repeatable: [
        'setUpHost',
        'checkHost',
        'tearDownHost',
        'releaseSlot',
        'changePolicy',
        'readSlot',
        'readUsage',
        'listSlots',
        'reapAll',
      ],
      limitMs: (method) =>
        method === 'reapAll' || method === 'tearDownHost' ? LONG_REQUEST_LIMIT_MS : REQUEST_LIMIT_MS,
    })
  }
}
