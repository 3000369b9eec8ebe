/** Checks the control groups that limit CPU and memory of a sandbox: version 2, or 1 if only that has both controllers. */

import { constants } from 'node:fs'
import { access, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { warrenCommand } from '@warren/kit/warren-command'
import type { Check, CheckResult, Machine } from './check.ts'

const CONTROLLERS = ['cpu', 'memory'] as const

export type CgroupMount = { version: 1 | 2; path: string; controllers: string[] }

export const cgroupChecks = (machine: Machine): Check[] => [
  { name: 'cgroups', needed: 'recommended', run: () => checkCgroups(machine) },
]

async function checkCgroups({ isRoot }: Machine): Promise<CheckResult> {
  const mounts = parseCgroupMounts(await readFile('/proc/mounts', 'utf8'))
  for (const mount of mounts) {
    if (mount.version === 2) mount.controllers = await readControllers(mount.path)
  }
  const chosen = chooseCgroups(mounts)
  if (chosen === undefined) {
    const fix = 'boot with systemd.unified_cgroup_hierarchy=1, or mount -t cgroup2 none /sys/fs/cgroup'
    return { ok: false, detail: 'no cpu and memory controllers', fix }
  }
  const detail = `v${chosen.version} with ${CONTROLLERS.join(' and ')}`
  for (const path of chosen.paths) {
    try {
      await access(path, constants.W_OK)
    } catch (error) {
      const why = (error as NodeJS.ErrnoException).code ?? error
      const fix = isRoot ? `mount -o remount,rw ${path}` : `sudo ${warrenCommand()} doctor (root can write there)`
      return { ok: false, detail: `${detail}, but ${path} is not writable (${why})`, fix }
    }
  }
  return { ok: true, detail: `${detail}, writable` }
}

const readControllers = async (path: string): Promise<string[]> =>
  (await readFile(join(path, 'cgroup.controllers'), 'utf8')).trim().split(/\s+/)

/** Parses /proc/mounts. A v1 mount lists its controllers in its options; those of a v2 mount are read from a file. */
export function parseCgroupMounts(mounts: string): CgroupMount[] {
  return mounts.split('\n').flatMap((line): CgroupMount[] => {
    const [, path, type, options] = line.split(' ')
    if (path === undefined || options === undefined) return []
    if (type === 'cgroup2') return [{ version: 2, path, controllers: [] }]
    if (type === 'cgroup') return [{ version: 1, path, controllers: options.split(',') }]
    return []
  })
}

/** A hybrid system mounts both versions, and a controller belongs to only one of them. */
export function chooseCgroups(mounts: readonly CgroupMount[]): { version: 1 | 2; paths: string[] } | undefined {
  for (const version of [2, 1] as const) {
    const paths = CONTROLLERS.map(
      (name) => mounts.find((mount) => mount.version === version && mount.controllers.includes(name))?.path,
    )
    const found = paths.filter((path) => path !== undefined)
    if (found.length === CONTROLLERS.length) return { version, paths: [...new Set(found)] }
  }
  return undefined
}
