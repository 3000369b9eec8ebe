/**
 * When the host agent starts, it adopts the VMs that still run and belong to a sandbox, and removes everything else.
 *
 *   paused                               stays as it is
 *   running, and QEMU is alive           is adopted; the guest notices nothing. If its CPUs are paused, the previous host
 *                                        agent died during a pause or fork, and they are resumed
 *   running or dead, with a generation   was paused: only the end of the pause is missing
 *   newer than its record
 *   running, and QEMU is gone            is dead; its disk and its generations stay
 *   the record cannot be read            is paused if a generation was saved
 *   it cannot, and no generation was     is reported as dead and can only be deleted. Its record stays
 *   saved, or a newer host agent wrote it
 *
 * VMM folders, QEMU processes, sockets, cgroups, slots, generations and objects that no record names are left over from
 * an interrupted operation or belong to the pool. They are removed, except those that an unreadable record may name: a
 * newer one names what its text contains, a damaged one may name anything. Processes stay only for sandboxes that are
 * reported as dead; disks also for those that are paused now, until the next start.
 */
import { mkdir, readdir, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/error-text'
import type { Deps } from '../deps.ts'
import { SOCKETS } from '../vmm/args.ts'
import { refreshActiveDisk } from '../vmm/disk/live.ts'
import { socketFolderOf, vmmFolderOf, vmmFoldersOf } from '../vmm/folders.ts'
import { explainKill } from '../vmm/memory.ts'
import { isAlive } from '../vmm/process.ts'
import { Qmp } from '../vmm/qmp.ts'
import type { VmmRecord } from '../vmm/record.ts'
import { releaseVmm, stopVmm } from '../vmm/release.ts'
import { findVmmProcesses, removeStrays } from '../vmm/strays.ts'
import { Vmm } from '../vmm/vmm.ts'
import type { Entries, Entry } from './entries.ts'
import { moveVm, nextRecord } from './move.ts'
import { type DeadVm, findVmmRecord, type PausedVm, type RunningVm, type StoredVm, toStored } from './record.ts'
import type { UnreadableRecord } from './registry.ts'
import { saveUsage } from './usage.ts'
import { openMounts, watchVm } from './watch.ts'

const MONITOR_LIMIT_MS = 60_000
const MONITOR_TRY_MS = 5_000
const VMM_ID = /^[0-9a-f]{16}$/

type Found = 'running' | 'paused' | 'dead'

export async function adoptAll(deps: Deps, entries: Entries): Promise<Record<Found, number>> {
  const { records, unreadable } = await deps.registry.list()
  await deps.registry.removeStrays()
  const unresolved: UnreadableRecord[] = []
  for (const one of unreadable) {
    const rebuilt = await rebuildRecord(deps, one)
    if (rebuilt) records.push(rebuilt)
    else unresolved.push(one)
  }
  for (const { id, why } of unresolved) entries.unreadable.set(id, why)
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
  const spared = await findSpared(deps, entries, unresolved)
  for (const { slot } of spared) deps.network.slots.keep(slot)
  // After the living ones: the slot of a dead VMM may belong to one of them by now.
  for (const { entry, record, reason } of dead) {
    await releaseDead(deps, entry, record, reason)
    found.dead++
  }
  // Before anything is removed: the disk of a VMM that stays is layered on objects that only its record names.
  if (unreadable.length > 0) await deps.snapshots.retainExisting()
  await removeUnnamed(deps, entries, { unreadable, spared: spared.map(({ id }) => id) })
  return found
}

/**
 * A damaged record, for example after a power failure: what was saved of the sandbox is still there. Undefined if nothing
 * was saved, or if the record is not damaged but newer: the sandbox may run, and a newer host agent can continue it.
 */
async function rebuildRecord(deps: Deps, { id, why, isNewer }: UnreadableRecord): Promise<StoredVm | undefined> {
  const newest = isNewer ? undefined : deps.snapshots.findNewestIntact(id)
  if (!newest) {
    const advice = isNewer ? 'start the newer host agent again' : 'repair the record, or delete the sandbox'
    deps.log.error(
      { sandbox: id, why },
      `failed to read the record of a sandbox: everything that it may name is kept; ${advice}`,
    )
    return undefined
  }
  const { generation, manifest } = newest
  const file = await deps.registry.setAside(id)
  deps.log.error({ sandbox: id, why, file, generation }, 'failed to read the record of a sandbox: rebuilt as paused')
  const record: PausedVm = {
    state: 'paused',
    ...{ id, fence: 0, ip: '', diskMib: manifest.disk_mib, generation, identityPending: false },
    growPending: manifest.grow_pending ?? false,
    ...{ counts: null, flows: [], lastOperation: null },
  }
  // Written now: a generation without a record would be removed at the next start.
  await deps.registry.write(record)
  return record
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
  const qmp = await connectWhileAlive(deps, vmm)
  const adopted = new Vmm(deps, vmm, qmp)
  // A live fork freezes disks without writing the record.
  await refreshActiveDisk(adopted)
  if ((await adopted.status()) !== 'running') await adopted.resumeCpus()
  deps.network.slots.adopt(vmm.slot, record.ip)
  const mounting = openMounts(deps, record.id, adopted, record.ip, { isAdopted: true })
  watchVm(deps, entry, adopted, record.ip, undefined, mounting)
  return 'running'
}

/** A busy QEMU answers late; only one that has exited is lost. */
async function connectWhileAlive(deps: Deps, { id, qemu }: VmmRecord): Promise<Qmp> {
  const monitor = path.join(socketFolderOf(deps, id), SOCKETS.monitor)
  for (const deadline = Date.now() + MONITOR_LIMIT_MS; ; ) {
    if (!isAlive(qemu)) {
      throw new Error((await explainKill(deps, id)) ?? 'its QEMU process exited while no host agent was running')
    }
    process.kill(qemu.pid, 'SIGCONT') // The guard of the disk may have stopped it (vmm.ts).
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
  // Written before it counts: if the write fails, the sandbox is still what its record says.
  await deps.registry.write(nextRecord(entry.record, 'pauseFound', { generation }))
  moveVm(entry, 'pauseFound', { generation })
  await stopVmm(deps, vmm).catch((error) =>
    deps.log.error({ err: error, sandbox: entry.id, vmm: vmm.id }, 'failed to stop the VMM of a paused sandbox'),
  )
}

type UnknownVmm = { id: string; slot: number }

/**
 * Running VMMs that may belong to a sandbox whose record cannot be read. An address belongs to one sandbox for life, so
 * the VMM with the address of a known sandbox is one that was on standby or being resumed, and not among them.
 */
async function findSpared(
  deps: Deps,
  entries: Entries,
  unresolved: readonly UnreadableRecord[],
): Promise<UnknownVmm[]> {
  if (unresolved.length === 0) return []
  const known = new Set(entries.list().map(({ record }) => findVmmRecord(record)?.id))
  const addresses = new Set(entries.list().map(({ record }) => toStored(record)?.ip))
  const processes = await findVmmProcesses(deps)
  const spared = processes.flatMap(({ id, uid }) => {
    if (known.has(id) || !VMM_ID.test(id) || !mayBeNamed(id, unresolved)) return []
    const slot = uid - deps.uidOf(0)
    const ip = deps.network.slots.findStoredAddress(slot)
    return ip !== undefined && addresses.has(ip) ? [] : [{ id, slot }]
  })
  if (spared.length > 0) deps.log.error({ vmms: spared }, 'VMMs of unknown sandboxes keep running')
  return spared
}

/** A newer record is intact, so its text has the id of every VMM that it names. */
const mayBeNamed = (vmmId: string, unreadable: readonly UnreadableRecord[]): boolean =>
  unreadable.some(({ isNewer, text }) => !isNewer || text.includes(vmmId))

async function removeUnnamed(
  deps: Deps,
  entries: Entries,
  { unreadable, spared }: { unreadable: readonly UnreadableRecord[]; spared: readonly string[] },
): Promise<void> {
  const vmms = entries.list().flatMap(({ record }) => findVmmRecord(record) ?? [])
  const known = new Set(vmms.map(({ id }) => id))
  const alive = new Set(vmms.flatMap(({ id, resources }) => (resources === 'released' ? [] : id)))
  for (const id of spared) alive.add(id)
  await removeStrays(deps, (id) => alive.has(id))
  await mkdir(vmmFoldersOf(deps), { recursive: true, mode: 0o700 })
  for (const id of await readdir(vmmFoldersOf(deps))) {
    if (known.has(id) || mayBeNamed(id, unreadable)) continue
    await rm(vmmFolderOf(deps, id), { recursive: true, force: true })
  }
  for (const id of [...deps.snapshots.listAll().keys()]) {
    if (!entries.find(id) && !entries.unreadable.has(id)) await deps.snapshots.deleteAll(id)
  }
  await deps.snapshots.collect()
  deps.rings.removeOthers((id) => entries.find(id) !== undefined || entries.unreadable.has(id))
}
