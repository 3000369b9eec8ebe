/**
 * VMMs that no sandbox needs, found by what they have on the machine: a QEMU process that is named after the instance's
 * run folder, the folder of those sockets, a cgroup. They are left over from an interrupted operation, or belonged to the
 * pool or to standby of a host agent that was killed.
 */
import { readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import type { Cgroups } from '../cgroups/cgroups.ts'
import { findProcess, killProcess } from './process.ts'

export type StrayDeps = {
  config: { runDir: string }
  cgroups: Pick<Cgroups, 'list' | 'remove'>
}
export type QemuProcess = { pid: number; uid: number; id: string }

/**
 * Sockets of sandboxes are in folders named by VMM id, those of base builds in folders with these prefixes. Versions
 * before the rename to `verify` used `proof`.
 */
const SOCKET_FOLDER = /^([0-9a-f]{16}|(base|verify|proof)-.*)$/

/** QEMU, whatever its file is called, or the jail that is about to become QEMU. */
const PROGRAM = /(qemu[^/]*|\/jail)$/

/** Returns what was found, by VMM id. The launcher must not be starting programs any more. */
export async function removeStrays(deps: StrayDeps, isNeeded: (id: string) => boolean): Promise<string[]> {
  const { config, cgroups } = deps
  const found = new Set<string>()
  const strays = (await findQemus(deps)).filter(({ id }) => !isNeeded(id))
  await Promise.all(
    strays.map(async ({ pid, id }) => {
      found.add(id)
      const handle = findProcess(pid)
      if (handle) await killProcess(handle)
    }),
  )
  for (const id of await readdir(config.runDir).catch(() => [])) {
    if (!SOCKET_FOLDER.test(id) || isNeeded(id)) continue
    found.add(id)
    await rm(path.join(config.runDir, id), { recursive: true, force: true })
  }
  for (const id of await cgroups.list()) {
    if (isNeeded(id)) continue
    found.add(id)
    await cgroups.remove(id)
  }
  return [...found]
}

/** The QEMU processes of this host agent: their sockets are in its run folder. */
export async function findQemus({ config }: Pick<StrayDeps, 'config'>): Promise<QemuProcess[]> {
  const found: QemuProcess[] = []
  // As its name; VMMs that versions before 0.3.0 started have it in the paths of their sockets.
  const prefix = `${config.runDir}/`
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const args = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).split('\0')
    if (!PROGRAM.test(args[0] ?? '')) continue
    const id = args
      .find((arg) => arg.includes(prefix))
      ?.split(prefix)[1]
      ?.split('/')[0]
    if (id === undefined) continue
    const status = await readFile(`/proc/${name}/status`, 'utf8').catch(() => '')
    const uid = /^Uid:\s+(\d+)/m.exec(status)?.[1]
    if (uid !== undefined) found.push({ pid: Number(name), uid: Number(uid), id }) // Otherwise it exited meanwhile.
  }
  return found
}
