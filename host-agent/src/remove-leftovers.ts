/**
 * The end of a stop, also of one that was cut short: removes what this instance has on the machine and no sandbox needs.
 * Sandboxes outlive the host agent, so whatever a record names stays, and with it the network. Without any, nothing of
 * the instance is left on the machine.
 *
 * Everything is found by the name of the instance, never from the memory of a process, so it also removes what a killed
 * host agent left (clean-up/main.ts). The launcher must have exited before, or it could start another program.
 */
import { rm, rmdir } from 'node:fs/promises'
import path from 'node:path'
import type { Log } from '@warren/kit/log'
import { type Cgroups, openCgroups } from './cgroups/cgroups.ts'
import { findCgroupLayout } from './cgroups/layout.ts'
import { networkStateDir } from './choose-network.ts'
import type { Config } from './config.ts'
import { Netd } from './net/netd-client.ts'
import { removeStrays } from './vmm/strays.ts'
import { findVmmRecord } from './vms/record.ts'
import { openRegistry } from './vms/registry.ts'

/** What the caller has open and closes afterwards; the rest is opened here. */
type Opened = { netd?: Netd | undefined; cgroups?: Cgroups | undefined }

export async function removeLeftovers(
  config: Pick<Config, 'dataDir' | 'instance' | 'runDir'>,
  log: Pick<Log, 'warn'>,
  opened: Opened,
): Promise<void> {
  const { records, unreadable } = await openRegistry(path.join(config.dataDir, 'vms')).list()
  const named = new Set(records.flatMap((record) => findVmmRecord(record)?.id ?? []))
  const layout = await findCgroupLayout()
  const cgroups = opened.cgroups ?? (layout && (await openCgroups(layout, config.instance)))
  // A record that cannot be read may name any of them.
  if (cgroups && unreadable.length === 0) {
    const removed = await removeStrays({ config, cgroups }, (id) => named.has(id))
    if (removed.length > 0) log.warn({ vmms: removed }, 'removed VMMs that were not stopped in time')
  }
  if (named.size > 0 || unreadable.length > 0) return

  await tearDownNetwork(config.instance, opened.netd)
  await cgroups?.close()
  await rm(networkStateDir(config), { recursive: true, force: true })
  await rmdir(config.runDir).catch(ignoreMissing)
}

async function tearDownNetwork(instance: string, opened: Netd | undefined): Promise<void> {
  const netd = opened ?? new Netd(instance)
  try {
    const { released } = await netd.request('tearDownHost')
    const held = released.filter(({ freed }) => !freed)
    if (held.length > 0) throw new Error(`a process still holds the network namespaces of ${held.length} slots`)
  } finally {
    if (!opened) await netd.close()
  }
}

function ignoreMissing(error: NodeJS.ErrnoException): void {
  if (error.code !== 'ENOENT') throw error
}
