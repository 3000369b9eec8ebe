/** Whether this machine has so little to do, and so much room, that a base can be booted without a request for it. */
import { statfs } from 'node:fs/promises'
import { availableParallelism, loadavg } from 'node:os'
import type { Deps } from './deps.ts'
import { readMemory } from './memory-pressure.ts'

export type MachineUse = {
  /** Since the last create, pause, resume or fork ended. */
  idleMs: number
  /** Programs that ran or waited for a core, on average over the last minute, per core. */
  loadPerCore: number
  availableMemMib: number
  totalMemMib: number
  freeDiskMib: number
}

/** Creates often come in series. */
const IDLE_MS = 15_000
const LOAD_PER_CORE_MAX = 0.5
/** Of the machine's memory, left free beside the guest that boots. */
const FREE_MEM_SHARE = 0.2
/** Besides the memory of the guest, which is saved on disk. The disks of sandboxes grow into what is left. */
const FREE_DISK_MIB = 10_240
const MIB = 1024 * 1024

/** The first reason not to boot a base of `memMib` now; undefined if there is none. */
export function findObstacle(use: MachineUse, memMib: number): string | undefined {
  if (use.idleMs < IDLE_MS) return 'sandboxes are being created, paused or resumed'
  if (use.loadPerCore > LOAD_PER_CORE_MAX) return 'the machine is busy'
  if (use.availableMemMib < memMib + use.totalMemMib * FREE_MEM_SHARE) return 'there is too little free memory'
  if (use.freeDiskMib < memMib + FREE_DISK_MIB) return 'there is too little free disk space'
  return undefined
}

export async function measureMachine({ activity, config }: Pick<Deps, 'activity' | 'config'>): Promise<MachineUse> {
  const { bavail, bsize } = await statfs(config.dataDir)
  const { availableMib, totalMib } = readMemory()
  return {
    idleMs: activity.idleMs(),
    loadPerCore: loadavg()[0]! / availableParallelism(),
    availableMemMib: availableMib,
    totalMemMib: totalMib,
    freeDiskMib: Math.floor((bavail * bsize) / MIB),
  }
}
