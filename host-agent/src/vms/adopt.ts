/**
 * After a start: what runs and belongs is adopted, everything else is removed.
 *
 *   a saved sandbox                             stays as it is
 *   one whose body lives                        is adopted, its processes untouched; if it stands still, somebody died
 *                                               in the middle of a pause or a fork, and it goes on
 *   one whose body lives and that has a newer   was paused: only the end of its body was not seen to
 *   generation than its record says
 *   one whose body is gone                      is dead, with its disk and its generations kept
 *
 * What no record names (bodies, QEMUs, sockets, cgroups, slots, generations, objects) is a left-over of a moment
 * between two steps, or of the pool.
 */
import { mkdir, readdir, readFile, rm } from 'node:fs/promises'
import path from 'node:path'
import { errorText } from '@warren/kit/text'
import type { Deps } from '../deps.ts'
import { SOCKETS } from '../vmm/args.ts'
import { socketDirOf } from '../vmm/launch.ts'
import { findProcess, isAlive, killProcess, type ProcessHandle } from '../vmm/process.ts'
import { Qmp } from '../vmm/qmp.ts'
import { releaseVmm, stopVmm, Vmm, vmmFolderOf } from '../vmm/vmm.ts'
import { saveCounts } from './counts.ts'
import { saveFlows } from './flows.ts'
import type { VmRecord } from './registry.ts'
import type { Vms } from './vms.ts'

const MONITOR_LIMIT_MS = 60_000
const MONITOR_TRY_MS = 5_000

type Found = 'running' | 'paused' | 'dead'

export async function adoptAll(deps: Deps, vms: Vms): Promise<Record<Found | 'removed', number>> {
  const { records, broken } = await deps.registry.list()
  await deps.registry.tidy()
  for (const id of broken) records.push(...(await rebuild(deps, id)))
  const found = { running: 0, paused: 0, dead: 0, removed: 0 }
  // The living first: a slot that a dead one had may be theirs by now.
  const dead: [VmRecord, unknown][] = []
  await Promise.all(
    records.map(async (record) => {
      try {
        found[await adoptOne(deps, vms, record)]++
      } catch (error) {
        dead.push([record, error])
      }
    }),
  )
  for (const [record, error] of dead) {
    await markDead(deps, vms, record, error)
    found.dead++
  }
  await removeStrays(deps, vms.records())
  return found
}

/** A record that a crash of the machine left unreadable: what is saved of the sandbox is still there. */
async function rebuild(deps: Deps, id: string): Promise<VmRecord[]> {
  const newest = deps.snapshots.findNewest(id)
  deps.log.error({ sandbox: id, saved: newest !== undefined }, 'the record of a sandbox could not be read')
  if (!newest) return []
  const { generation, manifest } = newest
  const record: VmRecord = { id, fence: 0, state: 'paused', ip: '', disk_mib: manifest.disk_mib, generation }
  // In its place at once: what no record names is removed at a start.
  await deps.registry.write(record)
  return [record]
}

async function adoptOne(deps: Deps, vms: Vms, record: VmRecord): Promise<Found> {
  const { body } = record
  if (record.state === 'paused' || !body) {
    Object.assign(record, { state: record.state === 'dead' ? 'dead' : 'paused' })
    vms.adopt(record)
    return record.state === 'dead' ? 'dead' : 'paused'
  }
  const newest = deps.snapshots.findNewest(record.id)?.generation ?? 0
  if (newest > (record.generation ?? 0)) return finishPause(deps, vms, record, newest)
  deps.snapshots.retain(body.id, body.layers)
  if (record.state === 'dead') throw new Error(record.reason ?? 'it died before')
  const monitor = path.join(socketDirOf(deps, body.id), SOCKETS.monitor)
  const qmp = await connectWhileAlive(monitor, body.qemu)
  const adopted = new Vmm(deps, body, qmp)
  if ((await adopted.status()) !== 'running') await adopted.resumeCpus()
  deps.network.slots.adopt(body.slot, record.ip)
  vms.adopt(record, adopted)
  return 'running'
}

/** A machine that is busy answers late; only one whose QEMU is gone is lost. */
async function connectWhileAlive(monitor: string, qemu: ProcessHandle): Promise<Qmp> {
  for (const deadline = Date.now() + MONITOR_LIMIT_MS; ; ) {
    if (!isAlive(qemu)) throw new Error('its QEMU ended while nobody watched')
    try {
      return await Qmp.connect(monitor, AbortSignal.timeout(MONITOR_TRY_MS))
    } catch (error) {
      if (Date.now() > deadline) throw new Error('its QEMU does not answer', { cause: error })
    }
  }
}

async function markDead(deps: Deps, vms: Vms, record: VmRecord, error: unknown): Promise<void> {
  const { body } = record
  if (body) {
    if (deps.network.slots.taken.includes(body.slot)) body.slotGone = true
    await saveCounts(deps, record, body)
    await saveFlows(deps, record, body)
    await releaseVmm(deps, body)
  }
  Object.assign(record, { state: 'dead', reason: errorText(error) })
  await deps.registry.write(record)
  vms.adopt(record)
}

async function finishPause(deps: Deps, vms: Vms, record: VmRecord, generation: number): Promise<Found> {
  const body = record.body
  delete record.body
  delete record.reason
  Object.assign(record, { state: 'paused', generation })
  if (body) {
    await saveCounts(deps, record, body)
    await saveFlows(deps, record, body)
  }
  await deps.registry.write(record)
  if (body) await stopVmm(deps, body)
  vms.adopt(record)
  return 'paused'
}

async function removeStrays(deps: Deps, records: VmRecord[]): Promise<void> {
  const bodies = new Set(records.flatMap(({ body }) => body?.id ?? []))
  const alive = new Set(records.flatMap(({ body }) => (body && !body.released ? body.id : [])))
  for (const { pid, id } of await findQemus(deps)) {
    const mark = findProcess(pid)
    if (mark && !alive.has(id)) await killProcess(mark)
  }
  for (const id of await readdir(deps.config.runDir)) {
    const isOfBody = /^([0-9a-f]{16}|(base|proof)-.*)$/.test(id)
    if (isOfBody && !alive.has(id)) await rm(path.join(deps.config.runDir, id), { recursive: true, force: true })
  }
  for (const name of await deps.cgroups.list()) if (!alive.has(name)) await deps.cgroups.remove(name)
  const homes = path.dirname(vmmFolderOf(deps, 'any'))
  await mkdir(homes, { recursive: true, mode: 0o700 })
  for (const id of await readdir(homes)) {
    if (!bodies.has(id)) await rm(vmmFolderOf(deps, id), { recursive: true, force: true })
  }
  const known = new Set(records.map((record) => record.id))
  for (const id of [...deps.snapshots.listAll().keys()]) if (!known.has(id)) await deps.snapshots.deleteAll(id)
  await deps.snapshots.collect()
}

/** Ours have their sockets in our folder. */
async function findQemus(deps: Deps): Promise<{ pid: number; id: string }[]> {
  const found: { pid: number; id: string }[] = []
  const ours = `path=${deps.config.runDir}/`
  for (const name of await readdir('/proc')) {
    if (!/^\d+$/.test(name)) continue
    const args = (await readFile(`/proc/${name}/cmdline`, 'utf8').catch(() => '')).split('\0')
    if (!args[0]?.endsWith(deps.machine.binary)) continue
    const id = args
      .find((arg) => arg.includes(ours))
      ?.split(ours)[1]
      ?.split('/')[0]
    if (id !== undefined) found.push({ pid: Number(name), id })
  }
  return found
}
