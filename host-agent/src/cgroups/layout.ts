/** Finds where cgroups are mounted: version 2 if it has the cpu and memory controllers, otherwise version 1. */
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { parseCgroupMounts } from '../doctor/cgroups.ts'

export type CgroupLayout =
  /** `io` and `pids`: it has the controller of disks, and of the number of processes. */
  | { version: 2; root: string; io?: true; pids?: true }
  /** Each controller is a separate tree; two may share one mount. */
  | { version: 1; cpu: string; memory: string; cpuacct?: string; blkio?: string; pids?: string }

/** Undefined if CPU and memory cannot be limited on this machine. `mounts` is the text of /proc/mounts. */
export async function findCgroupLayout(mounts?: string): Promise<CgroupLayout | undefined> {
  const found = parseCgroupMounts(mounts ?? (await readFile('/proc/mounts', 'utf8')))
  for (const { version, path } of found) {
    if (version !== 2) continue
    const controllers = await readControllers(path)
    // A hybrid system mounts version 2 without these.
    if (!controllers.includes('cpu') || !controllers.includes('memory')) continue
    return {
      version,
      root: path,
      ...(controllers.includes('io') ? { io: true } : {}),
      ...(controllers.includes('pids') ? { pids: true } : {}),
    }
  }
  const pathOf = (controller: string) =>
    found.find((mount) => mount.version === 1 && mount.controllers.includes(controller))?.path
  const [cpu, memory, cpuacct, blkio, pids] = ['cpu', 'memory', 'cpuacct', 'blkio', 'pids'].map(pathOf)
  if (cpu === undefined || memory === undefined) return undefined
  return {
    version: 1,
    cpu,
    memory,
    ...(cpuacct === undefined ? {} : { cpuacct }),
    ...(blkio === undefined ? {} : { blkio }),
    ...(pids === undefined ? {} : { pids }),
  }
}

const readControllers = async (root: string): Promise<string[]> =>
  (await readFile(join(root, 'cgroup.controllers'), 'utf8')).trim().split(/\s+/)
