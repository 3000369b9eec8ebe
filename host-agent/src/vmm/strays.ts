/**
 * VMMs that no sandbox needs, found by what they have on the machine: a cgroup with their processes, and the folder of their
 * sockets. They are left over from an interrupted operation, or belonged to the pool or to standby of a host agent that was
 * killed.
 *
 * Every program that the launcher starts is in a cgroup of the instance before it does anything else, and cannot leave it. It
 * may change everything else that would tell whose it is, such as its command line, after a guest has taken it over.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Cgroups } from '../cgroups/cgroups.ts'
import { findProcess, killProcess } from './process.ts'

export type StrayDeps = {
  config: { runDir: string }
  cgroups: Pick<Cgroups, 'list' | 'listProcesses' | 'remove'>
}
export type VmmProcess = { pid: number; uid: number; id: string }

/**
 * Sockets of sandboxes are in folders named by VMM id, those of base builds in folders with these prefixes. Versions
 * before the rename to `verify` used `proof`.
 */
const SOCKET_FOLDER = /^([0-9a-f]{16}|(base|verify|proof)-.*)$/
/** A jail that was about to join may do so until its cgroup is removed. After that it cannot, and ends. */
const REMOVE_ATTEMPTS = 3

/** Returns what was found, by VMM id. The launcher must not be starting programs any more. */
export async function removeStrays(deps: StrayDeps, isNeeded: (id: string) => boolean): Promise<string[]> {
  const { config, cgroups } = deps
  const strays = (await cgroups.list()).filter((id) => !isNeeded(id))
  await Promise.all(strays.map((id) => removeStray(deps, id)))
  const found = new Set(strays)
  for (const id of await readdir(config.runDir).catch(() => [])) {
    if (!SOCKET_FOLDER.test(id) || isNeeded(id)) continue
    found.add(id)
    await rm(path.join(config.runDir, id), { recursive: true, force: true })
  }
  return [...found]
}

async function removeStray({ cgroups }: StrayDeps, id: string): Promise<void> {
  for (let attempt = 1; ; attempt++) {
    const handles = (await cgroups.listProcesses(id)).map((pid) => findProcess(pid))
    await Promise.all(handles.map((handle) => handle && killProcess(handle)))
    try {
      return await cgroups.remove(id)
    } catch (error) {
      if (attempt === REMOVE_ATTEMPTS || (await cgroups.listProcesses(id)).length === 0) throw error
    }
  }
}

/** The processes of this host agent's VMMs. */
export async function findVmmProcesses({ cgroups }: Pick<StrayDeps, 'cgroups'>): Promise<VmmProcess[]> {
  const found: VmmProcess[] = []
  for (const id of await cgroups.list()) {
    for (const pid of await cgroups.listProcesses(id)) {
      const status = await readFile(`/proc/${pid}/status`, 'utf8').catch(() => '')
      const uid = /^Uid:\s+(\d+)/m.exec(status)?.[1]
      if (uid !== undefined) found.push({ pid, uid: Number(uid), id }) // Otherwise it exited meanwhile.
    }
  }
  return found
}
