/**
 * Order of events in a resume:
 *
 *   1. the newest generation that is not known to be damaged, and whether this host can run it
 *   2. a new body: QEMU standing still, a fresh layer of disk, the saved pages in its memory, the devices loaded; the
 *      saved files are checked against their sums meanwhile
 *   3. the address and its rules; then the guest goes on
 *   4. clock, entropy, identity, each confirmed by the guest; then anyone may use it
 *
 * Whatever fails takes the new body back and leaves every generation as it was. One that is damaged is set aside, so
 * that the next resume takes the one before it; which one that is, the error says: nobody goes back in time unasked.
 *
 * A body that still stands there from the pause (standby.ts) goes on with step 3: its rules may have changed meanwhile.
 *
 * A machine that died and was never saved still has its disk: it is booted from it, as after a power cut.
 */
import { existsSync } from 'node:fs'
import { crashPoint } from '@warren/kit/crash-point'
import { errorText } from '@warren/kit/text'
import { Undo } from '@warren/kit/undo'
import type { HostVmResumeBody, HostVmResumed } from '@warren/protocol'
import { findBase } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { type Manifest, objectsOf } from '../snapshots/manifest.ts'
import type { Reservation } from '../snapshots/objects.ts'
import { applyIdentity, IdentityNotConfirmed } from '../vmm/apply-identity.ts'
import { refuse } from '../vmm/compatibility.ts'
import { Damage, startVmm, type VmmPlan } from '../vmm/start.ts'
import { newVmmId, stopVmm, type Vmm, vmmFolderOf } from '../vmm/vmm.ts'
import { withCounts } from './counts.ts'
import { recoverDisk } from './recover-disk.ts'
import type { VmRecord } from './registry.ts'

export type ResumedVm = { body: Vmm; resumed: HostVmResumed }
type Source = { plan: Omit<VmmPlan, 'id' | 'home' | 'lasting'>; manifest?: Manifest; reservation?: Reservation }

export async function resumeVm(
  deps: Deps,
  record: VmRecord,
  request: HostVmResumeBody,
  signal: AbortSignal,
): Promise<ResumedVm> {
  const startedAt = performance.now()
  const source = await chooseSource(deps, record)
  try {
    return await resumeFrom(deps, record, source, request, startedAt, signal)
  } finally {
    await source.reservation?.release()
  }
}

async function resumeFrom(
  deps: Deps,
  record: VmRecord,
  source: Source,
  request: HostVmResumeBody,
  startedAt: number,
  signal: AbortSignal,
): Promise<ResumedVm> {
  const kept = await takeStandby(deps, record, source, request, signal)
  if (kept && source.manifest) {
    const { generation, saved_at } = source.manifest
    const took_ms = Math.round((performance.now() - startedAt) * 10) / 10
    return { body: kept, resumed: { generation, saved_at, took_ms, how: 'standby' } }
  }
  const undo = new Undo()
  try {
    const body = await deps.restoreLimiter(() => restore(deps, record, source, request, undo, signal), signal)
    const { manifest } = source
    const took_ms = Math.round((performance.now() - startedAt) * 10) / 10
    if (!manifest) return { body, resumed: { took_ms, how: 'boot' } }
    return { body, resumed: { generation: manifest.generation, saved_at: manifest.saved_at, took_ms, how: 'restore' } }
  } catch (error) {
    await undo.run(deps.log)
    throw await explain(deps, record, source, error)
  }
}

/** The process that was paused, if it still stands there. One that does not wake is no loss: everything is on disk. */
async function takeStandby(
  deps: Deps,
  record: VmRecord,
  { manifest }: Source,
  request: HostVmResumeBody,
  signal: AbortSignal,
): Promise<Vmm | undefined> {
  const body = manifest && !record.unborn ? deps.standby.take(manifest.memory.id, request.ip) : undefined
  if (!body) return undefined
  try {
    // What it goes on from is the generation that was saved of it.
    if (manifest) body.record.from = manifest.generation
    // It still has its slot, and with it the kernel's own counts.
    await deps.network.slots.change(body.record.slot, request.network)
    await body.resumeCpus()
    await wake(deps, record, body, request, signal)
    return body
  } catch (error) {
    deps.log.warn({ err: error, sandbox: record.id }, 'a body on standby did not wake; resuming from disk')
    await stopVmm(deps, body.record, body)
    return undefined
  }
}

async function wake(
  deps: Deps,
  record: VmRecord,
  body: Vmm,
  { hostname, envs, ssh_pubkeys, cpu_quota_pct }: HostVmResumeBody,
  signal: AbortSignal,
): Promise<void> {
  await applyIdentity(body, { hostname, envs, ssh_pubkeys }, { born: record.unborn === true }, signal)
  await crashPoint('host.resume.awake')
  await deps.cgroups.limitCpu(body.record.id, cpu_quota_pct)
}

async function chooseSource(deps: Deps, record: VmRecord): Promise<Source> {
  const newest = deps.snapshots.findNewest(record.id)
  if (!newest) return recoverDisk(deps, record)
  const { manifest } = newest
  const why = refuse(deps, manifest.needs)
  if (why) throw new HostError('snapshot_incompatible', why)
  // In the same breath as they were looked up: a merge may replace them at any moment.
  const reservation = deps.snapshots.reserve(objectsOf(manifest).map((object) => object.id))
  const base = await findBase(deps, manifest.needs).catch(async (error) => {
    await reservation.release()
    throw error
  })
  const layers = manifest.disk.map((layer) => layer.id)
  return { manifest, reservation, plan: { base, from: manifest, layers, diskMib: manifest.disk_mib } }
}

async function restore(
  deps: Deps,
  record: VmRecord,
  { plan, manifest }: Source,
  request: HostVmResumeBody,
  undo: Undo,
  signal: AbortSignal,
): Promise<Vmm> {
  signal.throwIfAborted()
  const id = newVmmId()
  if (manifest) checkPresence(deps, manifest)
  const checked = manifest ? checkObjects(deps, manifest) : Promise.resolve()
  checked.catch(() => {}) // Awaited below, unless the body fails first.
  const plain = { id, home: vmmFolderOf(deps, id), ...plan, lasting: true }
  const body = await startVmm(deps, plain, undo, signal).catch(async (error) => {
    await checked // QEMU may stumble over what is damaged before we have read it.
    throw error
  })
  await checked
  await crashPoint('host.resume.loaded')
  await deps.network.slots.give(body.record.slot, request.ip, withCounts(request.network, record))
  await body.resumeCpus()
  await wake(deps, record, body, request, signal)
  return body
}

/** Before QEMU is given them: a file that is missing would look like a failure to start. */
function checkPresence(deps: Deps, manifest: Manifest): void {
  const missing = objectsOf(manifest).filter((object) => !existsSync(deps.snapshots.fileOf(object.id)))
  if (missing.length > 0) throw new Damage(`${missing.length} of its files are missing`)
}

/** The memory is checked while it is loaded (vmm/start.ts). */
async function checkObjects(deps: Deps, manifest: Manifest): Promise<void> {
  for (const object of objectsOf(manifest)) {
    if (object === manifest.memory) continue
    const wrong = await deps.workers.run('check', { file: deps.snapshots.fileOf(object.id), checksums: object })
    if (wrong !== undefined) throw new Damage(`${object === manifest.state ? 'its devices' : 'its disk'}: ${wrong}`)
  }
}

async function explain(deps: Deps, record: VmRecord, { manifest }: Source, error: unknown): Promise<HostError> {
  if (error instanceof HostError) return error
  // Only a child that is nobody yet may be thrown away for it; anybody else is still all there on disk.
  if (error instanceof IdentityNotConfirmed && record.unborn) {
    return new HostError('identity_failed', error.message, { cause: error })
  }
  if (!manifest || !(error instanceof Damage)) {
    return new HostError('boot_failed', `could not resume ${record.id}: ${errorText(error)}`, { cause: error })
  }
  await deps.snapshots.markDamaged(record.id, manifest.generation, error.message)
  const before = deps.snapshots.findNewest(record.id)
  const offer = before
    ? `resume again to go back to generation ${before.generation}, saved ${before.manifest.saved_at}`
    : 'there is no older one'
  const message = `generation ${manifest.generation} is damaged (${error.message}); ${offer}`
  return new HostError('snapshot_damaged', message, { cause: error })
}
