/**
 * When the host agent starts, it adopts the VMs that still run and belong to a sandbox, and removes everything else.
 *
 *   paused                               stays as it is
 *   running, and QEMU is alive           is adopted; the guest notices nothing. If its CPUs are paused, the previous host
 *                                        agent died during a pause or fork, and they are resumed
 *   running or dead, with a generation   was paused: only the end of the pause is missing
 *   newer than its record
 *   running, and QEMU is gone            is dead; its disk and its generations stay
 *   the record cannot be read            is paused if a generation was saved, and lost otherwise
 *
 * VMM folders, QEMU processes, sockets, cgroups, slots, generations and objects that no record names are left over from
 * an interrupted operation or belong to the pool. They are removed.
 */
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import type { Deps } from '../deps.ts'
import { SOCKETS } from '../vmm/args.ts'
import { queryActiveDisk } from '../vmm/disk/block-nodes.ts'
import { socketFolderOf, vmmFolderOf, vmmFoldersOf } from '../vmm/folders.ts'
import { findProcess, isAlive, killProcess, type ProcessHandle } from '../vmm/process.ts'
import { Qmp } from '../vmm/qmp.ts'
import { releaseVmm, stopVmm } from '../vmm/release.ts'
import { Vmm } from '../vmm/vmm.ts'
import type { Entries, Entry } from './entries.ts'
import { moveVm } from './move.ts'
import { type DeadVm, findVmmRecord, type PausedVm, type RunningVm, type StoredVm } from './record.ts'
import type { UnreadableRecord } from './registry.ts'
import { saveUsage } from './usage.ts'
import { watchVm } from './watch.ts'

const MONITOR_LIMIT_MS = 60_000
const MONITOR_TRY_MS = 5_000
/**
 * Sockets of sandboxes are in folders named by VMM id, those of base builds in folders with these prefixes. Versions
 * before the rename to `verify` used `proof`.
 */
const SOCKET_FOLDER = /^([0-9a-f]{16}|(base|verify|proof)-.*)$/

type Found = 'running' | 'paused' | 'dead'

export async function adoptAll(deps: Deps, entries: Entries): Promise<Record<Found, number>> {
  const { records, unreadable } = await deps.registry.list()
  await deps.registry.removeStrays()
  for (const one of unreadable) records.push(...(await rebuildRecord(deps, one)))
  const found = { running: 0, paused: 0, dead: 0 }
  const dead: { entry: Entry; record: RunningVm | DeadVm; reason: string }[] = []
  await Promise.all(
    records.map(async (record) => {
      const entry = entries.add(record)
      if (record.state === 'paused') {
        found.paused++
        return
      }
      try {
        found[await adoptOne(deps, entry, record)]++
      } catch (error) {
        dead.push({ entry, record, reason: errorText(error) })
      }
    }),
  )
  // After the living ones: the slot of a dead VMM may belong to one of them by now.
  for (const { entry, record, reason } of dead) {
    await releaseDead(deps, entry, record, reason)
    found.dead++
  }
  await removeStrays(deps, entries)
  return found
}

/** A record that cannot be read, for example after a power failure. What was saved of the sandbox is still there. */
async function rebuildRecord(deps: Deps, { id, why }: UnreadableRecord): Promise<StoredVm[]> {
  const newest = deps.snapshots.findNewestIntact(id)
  if (!newest) {
    deps.log.error({ sandbox: id, why }, 'failed to read the record of a sandbox, and it was never saved: it is lost')
    return []
  }
  const { generation, manifest } = newest
  const file = await deps.registry.setAside(id)
  deps.log.error({ sandbox: id, why, file, generation }, 'failed to read the record of a sandbox: rebuilt as paused')
  const record: PausedVm = {
    state: 'paused',
    ...{ id, fence: 0, ip: '', diskMib: manifest.disk_mib, generation, identityPending: false },
    ...{ counts: null, flows: [], lastOperation: null },
  }
  // Written now: a generation without a record would be removed at the next start.
  await deps.registry.write(record)
  return [record]
}

/** Throws the reason if the sandbox is dead. */
async function adoptOne(deps: Deps, entry: Entry, record: RunningVm | DeadVm): Promise<Found> {
  const { vmm } = record
  const newest = deps.snapshots.findNewestIntact(record.id)?.generation ?? 0
  if (newest > (record.generation ?? 0)) {
    await finishPause(deps, entry, record, newest)
    return 'paused'
  }
  deps.snapshots.retain(vmm.id, vmm.disk.layers)
  if (record.state === 'dead') throw new Error(record.reason)
  const qmp = await connectWhileAlive(path.join(socketFolderOf(deps, vmm.id), SOCKETS.monitor), vmm.qemu)
  // A live fork freezes disks without writing the record.
  vmm.disk = { ...vmm.disk, active: await queryActiveDisk(qmp) }
  const adopted = new Vmm(deps, vmm, qmp)
  if ((await adopted.status()) !== 'running') await adopted.resumeCpus()
  deps.network.slots.adopt(vmm.slot, record.ip)
  watchVm(deps, entry, adopted)
  return 'running'
}

/** A busy QEMU answers late; only one that has exited is lost. */
async function connectWhileAlive(monitor: string, qemu: ProcessHandle): Promise<Qmp> {
  for (const deadline = Date.now() + MONITOR_LIMIT_MS; ; ) {
    if (!isAlive(qemu)) throw new Error('its QEMU process exited while no host agent was running')
    try {
      return await Qmp.connect(monitor, AbortSignal.timeout(MONITOR_TRY_MS))
    } catch (error) {
      if (Date.now() > deadline) throw new Error('its QEMU process does not respond', { cause: error })
    }
  }
}

async function releaseDead(deps: Deps, entry: Entry, record: RunningVm | DeadVm, reason: string): Promise<void> {
  const { vmm } = record
  if (vmm.resources === 'held' && deps.network.slots.taken.includes(vmm.slot)) vmm.resources = 'slot-released'
  await saveUsage(deps, entry, vmm)
  await releaseVmm(deps, vmm)
  if (record.state === 'running') moveVm(entry, 'die', { reason })
  await deps.registry.write(entry.record)
}

async function finishPause(deps: Deps, entry: Entry, { vmm }: RunningVm | DeadVm, generation: number): Promise<void> {
  await saveUsage(deps, entry, vmm)
  await deps.registry.write(moveVm(entry, 'pauseFound', { generation }))
  await stopVmm(deps, vmm)
}

async function removeStrays(deps: Deps, entries: Entries): Promise<void> {
  const vmms = entries.list().flatMap(({ record }) => findVmmRecord(record) ?? [])
  const known = new Set(vmms.map(({ id }) => id))
  const alive = new Set(vmms.flatMap(({ id, resources }) => (resources === 'released' ? [] : id)))
  for (const { pid, id } of await findQemus(deps)) {
    const handle = findProcess(pid)
    if (handle && !alive.has(id)) await killProcess(handle)
  }
  for (const id of await readdir(deps.config.runDir)) {
    if (!SOCKET_FOLDER.test(id) || alive.has(id)) continue
    await rm(path.join(deps.config.runDir, id), { recursive: true, force: true })
  }
  for (const name of await deps.cgroups.list()) if (!alive.has(name)) await deps.cgroups.remove(name)
  await mkdir(vmmFoldersOf(deps), { recursive: true, mode: 0o700 })
  for (const id of await readdir(vmmFoldersOf(deps))) {
    if (!known.has(id)) await rm(vmmFolderOf(deps, id), { recursive: true, force: true })
  }
  for (const id of [...deps.snapshots.listAll().keys()]) if (!entries.find(id)) await deps.snapshots.deleteAll(id)
  await deps.snapshots.collect()
}

/** The QEMU processes of this host agent: their sockets are in its run folder. */
async function findQemus(deps: Deps): Promise<{ pid: number; id: string }[]> {
  const found: { pid: number; id: string }[] = []
  const prefix = `path=${deps.config.runDir}/`
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const args = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).split('\0')
    if (!args[0]?.endsWith(deps.machine.binary)) continue
    const id = args
      .find((arg) => arg.includes(prefix))
      ?.split(prefix)[1]
      ?.split('/')[0]
    if (id !== undefined) found.push({ pid: Number(name), id })
  }
  return found
}
