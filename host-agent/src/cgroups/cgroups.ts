/**
 * One cgroup per VMM, all below `warren-<instance>`: limits its CPU, memory and threads, measures what it uses, and tells whose
 * processes are whose (vmm/strays.ts). The parent limits the memory of all of them together.
 *
 * A cgroup is created before its process starts and removed after the process has exited; `remove` waits for the last
 * process to be gone. Cgroups that a killed host agent left behind are in `list`.
 *
 * What a create and a delete do is synchronous: these files are in the kernel's memory, and handing each call to another thread
 * and back takes several times as long as the call.
 */
import { existsSync, mkdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CgroupLayout } from './layout.ts'
import { cpuQuota } from './limits.ts'

export type Cgroups = {
  /** Returns the files that a pid is written to. There is no CPU limit until `limitCpu`. */
  create: (id: string, limits: { memoryBytes: number; threads: number }) => Promise<{ procs: string[] }>
  /** To be called after the guest's first response: a start limited to a quarter of a core takes four times as long. */
  limitCpu: (id: string, cpuPercent: number) => Promise<void>
  /** How often the kernel killed a process of the cgroup for its memory, and the limit. Undefined if there is no such cgroup. */
  findMemoryEvents: (id: string) => Promise<MemoryEvents | undefined>
  /** Background work gets only the CPU time that other cgroups leave, and little of the disk. */
  setBackground: (id: string, background: boolean) => Promise<void>
  /** Does nothing if the cgroup does not exist. */
  remove: (id: string) => Promise<void>
  list: () => Promise<string[]>
  /** The pids in a cgroup, also of a process that is only in one of several trees. None if it does not exist. */
  listProcesses: (id: string) => Promise<number[]>
  /**
   * CPU time since the cgroup was created. Read of a hundred cgroups in ten seconds.
   */
  readCpuNs: (id: string) => number
  /** Removes the parent cgroup. To be called when no VMM is left. */
  close: () => Promise<void>
}

export type MemoryEvents = { killed: number; limitBytes: number }

/** The kernel takes a while to free a process of many gigabytes. */
const REMOVE_LIMIT_MS = 5_000
const REMOVE_POLL_MS = 10

/** What is not set is not limited. */
export type CgroupOptions = {
  /** Memory of all cgroups together. */
  totalBytes?: number
  /** Reads and writes of each cgroup on one disk (io.ts), per second. */
  io?: { disk: string; bytesPerSecond: number } | undefined
}

export async function openCgroups(
  layout: CgroupLayout,
  instance: string,
  { totalBytes, io }: CgroupOptions = {},
): Promise<Cgroups> {
  const parent = `warren-${instance}`
  const roots = rootsOf(layout)
  for (const root of roots) makeFolder(join(root, parent))
  if (layout.version === 2) {
    for (const folder of [layout.root, join(layout.root, parent)]) enableControllers(folder, layout)
  }
  if (totalBytes !== undefined) await limitTotal(layout, parent, totalBytes)
  const ioRoot = layout.version === 2 ? (layout.io ? layout.root : undefined) : layout.blkio
  if (ioRoot !== undefined) setIoWeight(join(ioRoot, parent), layout.version, IO_WEIGHT.all)
  const foldersOf = (id: string) => roots.map((root) => join(root, parent, checkId(id)))
  const write = (root: string, id: string, file: string, value: string) =>
    writeFileSync(join(root, parent, checkId(id), file), value)

  return {
    async create(id, { memoryBytes, threads }) {
      const folders = foldersOf(id)
      try {
        for (const folder of folders) makeFolder(folder)
        limitMemory(join(memoryRootOf(layout), parent, checkId(id)), layout.version, memoryBytes)
        const pidsRoot = layout.version === 2 ? layout.pids && layout.root : layout.pids
        if (pidsRoot !== undefined) writeFileSync(join(pidsRoot, parent, id, 'pids.max'), `${threads}`)
        if (io && ioRoot !== undefined) limitIo(join(ioRoot, parent, id), layout.version, io)
      } catch (error) {
        await removeFolders(folders)
        throw new Error(`failed to create the cgroup of ${id}`, { cause: error })
      }
      return { procs: folders.map((folder) => join(folder, 'cgroup.procs')) }
    },

    async limitCpu(id, cpuPercent) {
      const { quotaUs, periodUs } = cpuQuota(cpuPercent)
      if (layout.version === 2) return write(layout.root, id, 'cpu.max', `${quotaUs} ${periodUs}`)
      // Unlimited first: the kernel checks each value against the old one of the other.
      write(layout.cpu, id, 'cpu.cfs_quota_us', '-1')
      write(layout.cpu, id, 'cpu.cfs_period_us', `${periodUs}`)
      write(layout.cpu, id, 'cpu.cfs_quota_us', `${quotaUs}`)
    },

    async findMemoryEvents(id) {
      const folder = join(memoryRootOf(layout), parent, checkId(id))
      const read = (file: string) => readFile(join(folder, file), 'utf8')
      const [events, limit] =
        layout.version === 2 ? ['memory.events', 'memory.max'] : ['memory.oom_control', 'memory.limit_in_bytes']
      try {
        return { killed: parseKills(await read(events)), limitBytes: Number(await read(limit)) }
      } catch (error) {
        if ((error as NodeJS.ErrnoException).code === 'ENOENT') return undefined
        throw error
      }
    },

    async setBackground(id, background) {
      if (ioRoot !== undefined) {
        const weight = background ? IO_WEIGHT.background : IO_WEIGHT.usual
        setIoWeight(join(ioRoot, parent, checkId(id)), layout.version, weight)
      }
      if (layout.version === 2) return write(layout.root, id, 'cpu.weight', background ? '1' : '100')
      write(layout.cpu, id, 'cpu.shares', background ? '2' : '1024')
    },

    async remove(id) {
      await removeFolders(foldersOf(id))
    },

    async list() {
      const found = await Promise.all(roots.map((root) => readdir(join(root, parent), { withFileTypes: true })))
      return [...new Set(found.flat().flatMap((entry) => (entry.isDirectory() ? entry.name : [])))].sort()
    },

    async listProcesses(id) {
      const files = foldersOf(id).map((folder) => join(folder, 'cgroup.procs'))
      const found = await Promise.all(files.map((file) => readFile(file, 'utf8').catch(ignoreRemoved)))
      return [...new Set(found.flatMap((text) => text.split('\n').filter(Boolean).map(Number)))]
    },

    readCpuNs(id) {
      const read = (root: string, file: string) => readFileSync(join(root, parent, checkId(id), file), 'utf8')
      if (layout.version === 2) return parseCpuStat(read(layout.root, 'cpu.stat'))
      return layout.cpuacct === undefined ? 0 : Number(read(layout.cpuacct, 'cpuacct.usage'))
    },

    async close() {
      await removeFolders(roots.map((root) => join(root, parent)))
    },
  }
}

const memoryRootOf = (layout: CgroupLayout): string => (layout.version === 2 ? layout.root : layout.memory)

/** Of 1 to 1000. Everything else on the machine, PostgreSQL included, has 100. */
const IO_WEIGHT = { all: 50, usual: 100, background: 1 }

/** Kernels have weights only with a scheduler that knows them: BFQ, or the cost model of version 2. Each has its file. */
function setIoWeight(folder: string, version: CgroupLayout['version'], weight: number): void {
  const files = version === 2 ? ['io.weight', 'io.bfq.weight'] : ['blkio.bfq.weight']
  for (const file of files) writeIfPresent(join(folder, file), `${weight}`)
}

/** Version 1 limits writes only where they do not pass through the page cache (docs/security.md). */
function limitIo(
  folder: string,
  version: CgroupLayout['version'],
  { disk, bytesPerSecond }: NonNullable<CgroupOptions['io']>,
): void {
  if (version === 2) {
    writeFileSync(join(folder, 'io.max'), `${disk} rbps=${bytesPerSecond} wbps=${bytesPerSecond}`)
    return
  }
  writeFileSync(join(folder, 'blkio.throttle.read_bps_device'), `${disk} ${bytesPerSecond}`)
  writeFileSync(join(folder, 'blkio.throttle.write_bps_device'), `${disk} ${bytesPerSecond}`)
}

/** Nothing of it is swapped out: a VMM gets the memory that was reserved for it, and no more. */
function limitMemory(folder: string, version: CgroupLayout['version'], bytes: number): void {
  if (version === 2) {
    writeFileSync(join(folder, 'memory.max'), `${bytes}`)
    writeIfPresent(join(folder, 'memory.swap.max'), '0')
    return
  }
  // Of memory and swap together. Unlimited first: the kernel refuses a limit of memory that is above it.
  const both = join(folder, 'memory.memsw.limit_in_bytes')
  writeIfPresent(both, '-1')
  writeFileSync(join(folder, 'memory.limit_in_bytes'), `${bytes}`)
  writeIfPresent(both, `${bytes}`)
}

/** A kernel without swap accounting has no such file. The rest of the limit does not depend on it. */
function writeIfPresent(file: string, value: string): void {
  if (existsSync(file)) writeFileSync(file, value)
}

/**
 * VMMs that run already may use more than a limit that was lowered, or that an earlier version did not set. Then it is what
 * they use: a lower one would kill some of them.
 */
async function limitTotal(layout: CgroupLayout, parent: string, totalBytes: number): Promise<void> {
  const folder = join(memoryRootOf(layout), parent)
  const [usage, limit] =
    layout.version === 2 ? ['memory.current', 'memory.max'] : ['memory.usage_in_bytes', 'memory.limit_in_bytes']
  const usedBytes = Number(await readFile(join(folder, usage), 'utf8').catch(() => '0'))
  writeFileSync(join(folder, limit), `${Math.max(totalBytes, usedBytes)}`)
}

const rootsOf = (layout: CgroupLayout): string[] =>
  layout.version === 2
    ? [layout.root]
    : [
        ...new Set(
          [layout.cpu, layout.memory, layout.cpuacct, layout.blkio, layout.pids].filter((root) => root !== undefined),
        ),
      ]

/** A cgroup's children have a controller only if it is enabled for the subtree. */
function enableControllers(folder: string, { io, pids }: { io?: true; pids?: true }): void {
  const wanted = ['+cpu', '+memory', ...(io ? ['+io'] : []), ...(pids ? ['+pids'] : [])]
  try {
    writeFileSync(join(folder, 'cgroup.subtree_control'), wanted.join(' '))
  } catch (error) {
    throw new Error(`failed to enable the cpu and memory controllers below ${folder}`, { cause: error })
  }
}

/** The id becomes the name of a folder. */
function checkId(id: string): string {
  if (!/^[\w-]{1,64}$/.test(id)) throw new Error(`${JSON.stringify(id)} is not a valid cgroup name`)
  return id
}

export function parseCpuStat(text: string): number {
  const usage = /^usage_usec (\d+)$/m.exec(text)?.[1]
  if (usage === undefined) throw new Error('cpu.stat has no usage_usec')
  return Number(usage) * 1000
}

/** A cgroup that is being removed has no such device, one that was removed no such file. */
function ignoreRemoved(error: NodeJS.ErrnoException): string {
  if (error.code !== 'ENOENT' && error.code !== 'ENODEV') throw error
  return ''
}

/** Kernels before 4.13 do not count kills. There the reason is missing, nothing else. */
export const parseKills = (text: string): number => Number(/^oom_kill (\d+)$/m.exec(text)?.[1] ?? 0)

function makeFolder(path: string): void {
  try {
    mkdirSync(path)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'EEXIST') throw error
  }
}

async function removeFolders(folders: readonly string[]): Promise<void> {
  await Promise.all(folders.map(removeFolder))
}

/** The kernel refuses with EBUSY while a process in it is still exiting. */
async function removeFolder(path: string): Promise<void> {
  for (const deadline = Date.now() + REMOVE_LIMIT_MS; ; await sleep(REMOVE_POLL_MS)) {
    try {
      return rmdirSync(path)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'ENOENT') return
      if (code !== 'EBUSY' || Date.now() > deadline)
        throw new Error(`failed to remove the cgroup ${path}`, { cause: error })
    }
  }
}
