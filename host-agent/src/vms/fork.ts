/**
 * Forks a sandbox: every child gets a manifest that refers to the objects of its source. No data is copied, and deleting
 * one child does not affect the others.
 *
 * The CPUs of a running source are paused while its memory and device state are written and its active disk is frozen
 * below a new one; then they run again. Messages that were under way in the guest at that moment are sent once, by the
 * source: the first hello to a child ends every stream that was open in its memory (guest-api.ts).
 *
 * Children exist from the moment they are requested, in state `creating`: a repeated request or a delete finds them.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { span } from '@warren/kit/span'
import type { HostVmForkBody, HostVmForked } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { objectsOf } from '../snapshots/manifest.ts'
import { freezeForFork, mergeFrozenDisks, prepareNextDisk } from '../vmm/disk/live.ts'
import { findPrivateBytes } from '../vmm/process.ts'
import { type Draft, type SavedVm, saveVmm } from '../vmm/save.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { type Entries, type Entry, findWait, getLive, runOperation, wrongState } from './entries.ts'
import { moveVm, nextRecord } from './move.ts'
import type { VmRecord } from './record.ts'

/** The generation that every child starts with. */
const FIRST_GENERATION = 1

/** Operations that take a moment and after which the source still runs. */
const WAITS_FOR = ['fork', 'resize']

type Child = { id: string; fence: number }

export async function forkVm(
  deps: Deps,
  entries: Entries,
  entry: Entry,
  request: HostVmForkBody,
): Promise<HostVmForked> {
  if (request.children.some((child) => !entries.has(child))) deps.volume.checkFloor('a fork')
  // Before anything is looked up: a repetition of the same request can wait here as well.
  const findBusy = () => (request.live ? findWait(entry, WAITS_FOR) : undefined)
  for (let wait = findBusy(); wait; wait = findBusy()) await wait
  const missing = request.children.filter((child) => !entries.has(child))
  for (const child of missing) entries.checkNew(child)
  const underWay = request.children.flatMap((child) => entries.find(child.id)?.operation?.done ?? [])
  if (missing.length === 0) {
    await Promise.all(underWay)
    return { generation: FIRST_GENERATION }
  }
  if (!request.live) {
    await addChildren(deps, entries, missing, async () => reserveGeneration(deps, entry.id, request.generation))
    return { generation: FIRST_GENERATION }
  }
  const { record } = entry
  const { vmm } = getLive(entry)
  if (record.state !== 'running' || entry.operation) throw wrongState(record, 'running')
  const { id, diskMib, growPending = false } = record
  let stopped_ms = 0
  const source = runOperation(entry, 'fork', record.fence, async (aborted) => {
    await shorten(deps, entry, { id, diskMib }, vmm)
    const capture = () => captureLive(deps, { id, diskMib, growPending }, vmm)
    const bytes = findPrivateBytes(vmm.record.qemu)
    const captured = await deps.volume.withRoom('the saved memory', bytes, capture, aborted)
    stopped_ms = captured.stopped_ms
    return captured
  })
  await addChildren(deps, entries, missing, () => source)
  return { generation: FIRST_GENERATION, stopped_ms }
}

async function addChildren(deps: Deps, entries: Entries, children: Child[], open: () => Promise<Draft>): Promise<void> {
  const added = children.map(({ id, fence }) => entries.add({ state: 'creating', id, fence }))
  const source = open()
  const results = await Promise.allSettled(
    added.map((entry) =>
      runOperation(entry, 'fork', entry.record.fence, async () => {
        try {
          const { saved } = await source
          await span('add child', () => addChild(deps, entry, saved))
          return { generation: FIRST_GENERATION }
        } catch (error) {
          entries.delete(entry.id)
          throw error
        }
      }),
    ),
  )
  // Only now: until each child has its manifest or has failed, nothing else protects the objects from being deleted.
  await source.then((draft) => draft.reservation.release())
  for (const result of results) if (result.status === 'rejected') throw result.reason
}

/** The child exists once both its generation and its record are on disk. */
async function addChild(deps: Deps, entry: { id: string; readonly record: VmRecord }, source: SavedVm): Promise<void> {
  const { id } = entry
  await deps.snapshots.deleteAll(id) // Left over from an attempt that was killed between the two.
  await deps.snapshots.add({ ...source, sandbox: id, generation: FIRST_GENERATION })
  await crashPoint('host.fork.child-saved')
  const { disk_mib: diskMib, grow_pending: growPending = false } = source
  const change = { diskMib, growPending, generation: FIRST_GENERATION }
  await deps.registry.write(nextRecord(entry.record, 'forkDone', change))
  moveVm(entry, 'forkDone', change)
}

/** Synchronous: between lookup and reservation, a merge or a delete of the source could free the objects. */
function reserveGeneration(deps: Deps, sandbox: string, generation: number | undefined): Draft {
  const found =
    generation === undefined ? deps.snapshots.findNewestIntact(sandbox) : deps.snapshots.find(sandbox, generation)
  if (!found) throw new HostError('snapshot_missing', `${sandbox} has no generation ${generation ?? ''} to fork`)
  if (found.damage !== undefined) throw new HostError('snapshot_damaged', `generation ${found.generation} is damaged`)
  const reservation = deps.snapshots.reserve(objectsOf(found.manifest).map((object) => object.id))
  return { saved: found.manifest, reservation }
}

/** The fork works with a long chain as well, only slower. */
async function shorten(deps: Deps, entry: Entry, vm: { id: string; diskMib: number }, vmm: Vmm): Promise<void> {
  try {
    await mergeFrozenDisks(deps, vm, vmm, () => deps.registry.write(entry.record))
  } catch (error) {
    deps.log.warn({ err: error, sandbox: vm.id }, 'failed to merge the disks that live forks froze')
  }
}

async function captureLive(
  deps: Deps,
  vm: { id: string; diskMib: number; growPending: boolean },
  vmm: Vmm,
): Promise<Draft & { stopped_ms: number }> {
  await span('prepare next disk', () => prepareNextDisk(deps, vmm, vm.diskMib))

  let stoppedAt = 0
  let stopped_ms = 0
  let paused = true
  const resume = async () => {
    await span('freeze disk', () => freezeForFork(vmm))
    await vmm.resumeCpus()
    paused = false
    stopped_ms = Math.round((performance.now() - stoppedAt) * 10) / 10
  }
  try {
    stoppedAt = performance.now()
    await vmm.pauseCpus()
    await crashPoint('host.fork.stopped')
    return { ...(await span('save VM', () => saveVmm(deps, vm, vmm, resume))), stopped_ms }
  } finally {
    if (paused) await vmm.resumeCpus()
  }
}
