/** Watches a VMM that runs: records the signals of its guest, has its mounts, and marks the sandbox dead when QEMU exits. */
import type { Deps } from '../deps.ts'
import { VmMounts } from '../disks/vm-mounts.ts'
import { listenToSignals } from '../guest/listen-to-signals.ts'
import { releaseVmm } from '../vmm/release.ts'
import type { Vmm } from '../vmm/vmm.ts'
import type { Entry, LiveVm } from './entries.ts'
import { moveVm, vmCan } from './move.ts'
import { saveUsage } from './usage.ts'

export type Mounting = Pick<LiveVm, 'signals' | 'mounts'>

/** Before the guest runs. The caller aborts `signals` if it never does. */
export function openMounts(
  deps: Deps,
  sandbox: string,
  vmm: Vmm,
  ip: string,
  { isAdopted = false }: { isAdopted?: boolean } = {},
): Mounting {
  const signals = new AbortController()
  const { s3Proxy } = deps.network
  const mounts = s3Proxy && new VmMounts({ s3Proxy, log: deps.log }, { sandbox, ip, vmm, isAdopted }, signals.signal)
  return { signals, mounts }
}

export function watchVm(
  deps: Deps,
  entry: Entry,
  vmm: Vmm,
  ip: string,
  networkRevision?: number,
  mounting: Mounting = openMounts(deps, entry.id, vmm, ip),
): LiveVm {
  const { signals, mounts } = mounting
  const live = { vmm, signals, mounts, networkRevision }
  entry.live = live
  void listenToSignals(
    () => vmm.channel(),
    async (signal) => {
      await deps.registry.write(moveVm(entry, 'signal', { signal }))
    },
    signals.signal,
  )
  void vmm.qmp.closed.then(() => signals.abort())
  const { remove } = deps.diskGuard.add(vmm)
  signals.signal.addEventListener('abort', remove)
  void vmm.untilExit(deps).then((reason) => (vmm.stopping ? undefined : markDead(deps, entry, vmm, reason)))
  return live
}

/** The process is killed for certain before the sandbox counts as dead, because its disk may be booted from then on. */
async function markDead(deps: Deps, entry: Entry, vmm: Vmm, reason: string): Promise<void> {
  deps.log.warn({ sandbox: entry.id, reason }, 'the VM of a sandbox exited')
  // There is nothing at the other end any more, and the address may belong to another sandbox soon.
  for (const connection of entry.connections) connection.destroy()
  try {
    await saveUsage(deps, entry, vmm.record)
    await releaseVmm(deps, vmm.record, vmm)
    // A pause that was committed, or a delete, came first.
    if (entry.live?.vmm !== vmm || !vmCan('die', entry.record.state)) return
    entry.live = undefined
    await deps.registry.write(moveVm(entry, 'die', { reason }))
  } catch (error) {
    deps.log.error({ err: error, sandbox: entry.id }, 'cleanup after a VM exit failed')
  }
}
