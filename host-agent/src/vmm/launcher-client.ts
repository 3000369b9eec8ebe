/**
 * The host agent's client of the VMM launcher (launcher/main.ts). A request that failed because the launcher died may
 * have started its program; the next start of the host agent removes programs that no record names (vms/adopt.ts).
 */
import { join } from 'node:path'
import { checkInstance } from '../net/names.ts'
import { OnDemandProcess } from '../rpc/on-demand-process.ts'
import type { LauncherCalls, LauncherNotice } from './launcher-protocol.ts'

/** A first clone of a base may wait for a copy of the base's memory; everything else takes milliseconds. */
const REQUEST_LIMIT_MS = 20_000

export class VmmLauncher extends OnDemandProcess<LauncherCalls, LauncherNotice> {
  constructor(instance: string) {
    super({
      name: 'the VMM launcher',
      capabilities: 'launcher',
      program: join(import.meta.dirname, 'launcher/main.ts'),
      args: [checkInstance(instance)],
      repeatable: ['ready'],
      limitMs: () => REQUEST_LIMIT_MS,
    })
  }
}
