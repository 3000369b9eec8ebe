/**
 * One cgroup per VMM, all below `warren-<instance>`: limits its CPU and memory, measures what it uses, and tells whose
 * processes are whose (vmm/strays.ts).
 *
 * A cgroup is created before its process starts and removed after the process has exited; `remove` waits for the last
 * process to be gone. Cgroups that a killed host agent left behind are in `list`.
 */
import { readFileSync } from 'node:fs'
import { mkdir, readdir, readFile, rmdir, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import type { CgroupLayout } from './layout.ts'
import { cpuQuota } from './limits.ts'

export type Cgroups = {
  /** Returns the files that a pid is written to. There is no CPU limit until `limitCpu`. */
  create: (id: string, limits: { memoryBytes: number }) => Promise<{ procs: string[] }>
  /** To be called after the guest's first response: a start limited to a quarter of a core takes four times as long. */
  limitCpu: (id: string, cpuPercent: number) => Promise<void>
  limitMemory: (id: string, memoryBytes: number) => Promise<void>
  /** Background work gets only the CPU time that other cgroups leave. */
  setBackground: (id: string, background: boolean) => Promise<void>
  /** Does nothing if the cgroup does not exist. */
  remove: (id: string) => Promise<void>
  list: () => Promise<string[]>
  /** The pids in a cgroup, also of a process that is only in one of several trees. None if it does not exist. */
  listProcesses: (id: string) => Promise<number[]>
  /**
   * CPU time since the cgroup was created. Synchronous, because the kernel answers from memory: for a hundred cgroups in
   * ten seconds, the threads behind asynchronous reads would cost several times as much as the reads.
   */
  readCpuNs: (id: string) => number
  /** Removes the parent cgroup. To be called when no VMM is left. */
  close: () => Promise<void>
}

/** The kernel takes a while to free a process of many gigabytes. */
const REMOVE_LIMIT_MS = 5_000
const REMOVE_POLL_MS = 10

export async function openCgroups(layout: CgroupLayout, instance: string): Promise<Cgroups> {
  const parent = `warren-${instance}`
  const roots = rootsOf(layout)
  for (const root of roots) await makeFolder(join(root, parent))
  if (layout.version === 2) {
    for (const folder of [layout.root, join(layout.root, parent)]) await enableControllers(folder)
  }
  const foldersOf = (id: string) => roots.map((root) => join(root, parent, checkId(id)))
  const write = (root: string, id: string, file: string, value: string) =>
    writeFile(join(root, parent, checkId(id), file), value)

  const limitMemory = async (id: string, memoryBytes: number) => {
    if (layout.version === 2) await write(layout.root, id, 'memory.max', `${memoryBytes}`)
    else await write(layout.memory, id, 'memory.limit_in_bytes', `${memoryBytes}`)
  }

  return {
    limitMemory,

    async create(id, { memoryBytes }) {
      const folders = foldersOf(id)
      try {
        for (const folder of folders) await makeFolder(folder)
        await limitMemory(id, memoryBytes)
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
      await write(layout.cpu, id, 'cpu.cfs_quota_us', '-1')
      await write(layout.cpu, id, 'cpu.cfs_period_us', `${periodUs}`)
      await write(layout.cpu, id, 'cpu.cfs_quota_us', `${quotaUs}`)
    },

    async setBackground(id, background) {
      if (layout.version === 2) return write(layout.root, id, 'cpu.weight', background ? '1' : '100')
      await write(layout.cpu, id, 'cpu.shares', background ? '2' : '1024')
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

const rootsOf = (layout: CgroupLayout): string[] =>
  layout.version === 2
    ? [layout.root]
    : [...new Set([layout.cpu, layout.memory, ...(layout.cpuacct === undefined ? [] : [layout.cpuacct])])]

/** A cgroup's children have a controller only if it is enabled for the subtree. */
async function enableControllers(folder: string): Promise<void> {
  try {
    await writeFile(join(folder, 'cgroup.subtree_control'), '+cpu +memory')
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

async function makeFolder(path: string): Promise<void> {
  try {
    await mkdir(path)
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
      return await rmdir(path)
    } catch (error) {
      const { code } = error as NodeJS.ErrnoException
      if (code === 'ENOENT') return
      if (code !== 'EBUSY' || Date.now() > deadline)
        throw new Error(`failed to remove the cgroup ${path}`, { cause: error })
    }
  }
}
