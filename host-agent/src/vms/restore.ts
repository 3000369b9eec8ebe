/**
 * Starts the VMM of a resume: chooses the generation, compares its files with their checksums while QEMU loads them, and
 * turns a failure into the error for the caller.
 */
import { existsSync } from 'node:fs'
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/error-text'
import { span } from '@warren/kit/span'
import type { HostVmResumeBody } from '@warren/protocol'
import { getBase } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { type Manifest, objectsOf } from '../snapshots/manifest.ts'
import type { Reservation } from '../snapshots/objects.ts'
import type { Undo } from '../undo.ts'
import { IdentityNotConfirmed } from '../vmm/apply-identity.ts'
import { findIncompatibility } from '../vmm/compatibility.ts'
import { vmmFolderOf } from '../vmm/folders.ts'
import { chooseGuestAddress } from '../vmm/guest-agent.ts'
import { SnapshotDamage } from '../vmm/snapshot-damage.ts'
import { startVmm, type VmmPlan } from '../vmm/start.ts'
import { newVmmId, type Vmm } from '../vmm/vmm.ts'
import { withCounts } from './counts.ts'
import type { DeadVm, PausedVm } from './record.ts'
import { recoverDisk } from './recover-disk.ts'

export type SourcePlan = Omit<VmmPlan, 'id' | 'folder' | 'outlivesHostAgent'>
/** A generation, reserved until the resume is over; or a recovered disk. */
export type Source =
  | { plan: SourcePlan; manifest: Manifest; reservation: Reservation }
  | { plan: SourcePlan; manifest?: undefined; reservation?: undefined }

export async function chooseSource(deps: Deps, record: PausedVm | DeadVm): Promise<Source> {
  const newest = deps.snapshots.findNewestIntact(record.id)
  if (!newest) return { plan: await recoverDisk(deps, record) }
  const { manifest } = newest
  const why = findIncompatibility(deps, manifest.needs)
  if (why) throw new HostError('snapshot_incompatible', why)
  // Reserved in the same tick as they were looked up: a merge may replace them at any moment.
  const reservation = deps.snapshots.reserve(objectsOf(manifest).map((object) => object.id))
  const base = await getBase(deps, manifest.needs).catch(async (error) => {
    await reservation.release()
    throw error
  })
  const layers = manifest.disk.map((layer) => layer.id)
  const start = { from: 'generation', generation: manifest } as const
  return { manifest, reservation, plan: { base, start, layers, diskMib: Math.max(manifest.disk_mib, record.diskMib) } }
}

/** The CPUs are paused, the address and the rules are in force. */
export async function restoreVmm(
  deps: Deps,
  record: PausedVm | DeadVm,
  { plan, manifest }: Source,
  request: HostVmResumeBody,
  undo: Undo,
  signal: AbortSignal,
): Promise<Vmm> {
  signal.throwIfAborted()
  const id = newVmmId()
  if (manifest) checkPresence(deps, manifest)
  const checked = manifest ? span('check files', () => checkObjects(deps, manifest)) : Promise.resolve()
  checked.catch(() => {}) // Awaited below, unless the start fails first.
  const complete = { id, folder: vmmFolderOf(deps, id), ...plan, outlivesHostAgent: true }
  const vmm = await startVmm(deps, complete, undo, signal).catch(async (error) => {
    await checked // If a file is damaged, that explains why QEMU failed and is the error to report.
    throw error
  })
  await checked
  await crashPoint('host.resume.loaded')
  const guestAddress = chooseGuestAddress(vmm.record.agent, request.ip)
  const network = withCounts(request.network, record.counts)
  await span('assign network', () => deps.network.slots.assign(vmm.record.slot, request.ip, network, guestAddress))
  return vmm
}

/** Before QEMU starts: a missing file would look like a failure of QEMU. */
function checkPresence(deps: Deps, manifest: Manifest): void {
  const missing = objectsOf(manifest).filter((object) => !existsSync(deps.snapshots.fileOf(object.id)))
  if (missing.length > 0) throw new SnapshotDamage(`${missing.length} of its files are missing`)
}

/** All but the memory, which is checked while it is loaded (vmm/start.ts). */
async function checkObjects(deps: Deps, manifest: Manifest): Promise<void> {
  for (const object of objectsOf(manifest)) {
    if (object === manifest.memory) continue
    const damage = await deps.workers.run('check', { file: deps.snapshots.fileOf(object.id), checksums: object })
    if (damage === undefined) continue
    throw new SnapshotDamage(`${object === manifest.state ? 'its devices' : 'its disk'}: ${damage}`)
  }
}

/** Returns the error for the caller. If the generation is damaged, it is also marked so that the next resume skips it. */
export async function explainFailure(
  deps: Deps,
  record: PausedVm | DeadVm,
  { manifest }: Source,
  error: unknown,
): Promise<HostError> {
  if (error instanceof HostError) return error
  // `identity_failed` makes the control plane give the sandbox up, which is right only for a fork that was never used.
  // Any other sandbox is still complete on disk.
  if (error instanceof IdentityNotConfirmed && record.state === 'paused' && record.identityPending) {
    return new HostError('identity_failed', error.message, { cause: error })
  }
  if (!manifest || !(error instanceof SnapshotDamage)) {
    return new HostError('boot_failed', `failed to resume ${record.id}: ${errorText(error)}`, { cause: error })
  }
  await deps.snapshots.markDamaged(record.id, manifest.generation, error.message)
  const before = deps.snapshots.findNewestIntact(record.id)
  const advice = before
    ? `resume again to go back to generation ${before.generation}, saved ${before.manifest.saved_at}`
    : 'there is no older one'
  const message = `generation ${manifest.generation} is damaged (${error.message}); ${advice}`
  return new HostError('snapshot_damaged', message, { cause: error })
}
