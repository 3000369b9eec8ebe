/**
 * Resumes a sandbox. Order of events:
 *
 *   1. The newest generation that is not known to be damaged is chosen, and checked against what this host can run.
 *   2. A new VMM is started with its CPUs paused (restore.ts): an empty disk on top of the saved ones, the saved pages in
 *      its memory, the devices loaded. The saved files are compared with their checksums meanwhile.
 *   3. The address and the network rules are applied. The S3 proxy gets the mounts, with new tokens. Then the CPUs run.
 *   4. Clock, entropy and identity are applied and confirmed by the guest. Mount programs close their connections. At once the
 *      guest gets its mounts with the new tokens; the response does not wait for them.
 *   5. The sandbox may be used.
 *
 * If anything fails, the new VMM is removed and every generation stays as it was. A damaged generation is set aside, so
 * that the next resume uses the one before it. The error says which one that is: a sandbox never returns to an
 * older state without the caller knowing.
 *
 * If the file system may be smaller than the disk, it is grown before the response (resize.ts).
 *
 * A VMM that is still on standby from the pause (standby/) continues with step 3. A sandbox that died without ever
 * being saved still has its disk and is booted from it, as after a power failure.
 */
import { crashPoint } from '@warren/kit/crash-point'
import { span } from '@warren/kit/span'
import type { HostVmResumeBody, HostVmResumed } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { Undo } from '../undo.ts'
import { applyIdentity } from '../vmm/apply-identity.ts'
import { growDisk } from '../vmm/disk/live.ts'
import { listLimits } from '../vmm/guest-agent.ts'
import type { VmmRecord } from '../vmm/record.ts'
import { stopVmm } from '../vmm/release.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { type Entry, findPreviousResponse, runOperation } from './entries.ts'
import { moveVm, nextRecord } from './move.ts'
import type { DeadVm, PausedVm } from './record.ts'
import { GROW_LIMIT_MS } from './resize.ts'
import { chooseSource, explainFailure, restoreVmm, type Source } from './restore.ts'
import { type Mounting, openMounts, watchVm } from './watch.ts'

type ResumedDisk = { diskMib: number; growPending: boolean }
type RunningVm = { vmm: Vmm; mounting: Mounting }
type ResumedVm = RunningVm & { response: HostVmResumed; disk: ResumedDisk }

export async function resumeVm(deps: Deps, entry: Entry, request: HostVmResumeBody): Promise<HostVmResumed> {
  const { fence, ip } = request
  const previous = findPreviousResponse<HostVmResumed>(entry, 'resume', fence)
  if (previous) return previous
  const { from } = moveVm(entry, 'resume', { fence })
  return runOperation(entry, 'resume', fence, async (aborted) => {
    try {
      await span('wait for standby', async () => entry.standbyReady)
      const signal = AbortSignal.any([aborted, AbortSignal.timeout(request.limit_ms)])
      const { vmm, mounting, response, disk } = await startVm(deps, from, request, signal)
      const change = { fence, ip, vmm: vmm.record, response, ...disk }
      try {
        await span('write record', () => deps.registry.write(nextRecord(entry.record, 'resumeDone', change)))
      } catch (error) {
        mounting.signals.abort()
        await stopVmm(deps, vmm.record, vmm)
        throw error
      }
      moveVm(entry, 'resumeDone', change)
      watchVm(deps, entry, vmm, ip, request.network.revision, mounting)
      if (from.state === 'dead') await deleteDeadVmm(deps, from.vmm)
      return response
    } catch (error) {
      if (entry.record.state === 'resuming') moveVm(entry, 'resumeFailed', {})
      throw error
    }
  })
}

async function startVm(
  deps: Deps,
  record: PausedVm | DeadVm,
  request: HostVmResumeBody,
  signal: AbortSignal,
): Promise<ResumedVm> {
  const startedAt = performance.now()
  const source = await span('choose generation', () => chooseSource(deps, record))
  try {
    const standby = await resumeStandby(deps, record, source, request, signal)
    const running = standby ?? (await resumeFromDisk(deps, record, source, request, signal))
    const { vmm } = running
    const disk = await finishGrowth(deps, record, source, vmm, signal)
    const took_ms = Math.round((performance.now() - startedAt) * 10) / 10
    if (!source.manifest) return { ...running, disk, response: { took_ms, how: 'boot' } }
    const { generation, saved_at } = source.manifest
    const limits = reportLimits(deps, record.id, vmm, request.ip)
    const how = standby ? 'standby' : 'restore'
    return { ...running, disk, response: { generation, saved_at, took_ms, how, ...limits } }
  } finally {
    await source.reservation?.release()
  }
}

/** Continues the process that was paused, if it is still there. If that fails nothing is lost: everything is on disk. */
async function resumeStandby(
  deps: Deps,
  record: PausedVm | DeadVm,
  { manifest }: Source,
  request: HostVmResumeBody,
  signal: AbortSignal,
): Promise<RunningVm | undefined> {
  if (!manifest || isIdentityPending(record)) return undefined
  const vmm = deps.standby.take(manifest.memory.id, request.ip)
  if (!vmm) return undefined
  try {
    // It still has its slot, and with it the kernel's counters. The rules may have changed while it was paused.
    await span('change network', () => deps.network.slots.change(vmm.record.slot, request.network))
    return await runGuest(deps, record, vmm, request, signal)
  } catch (error) {
    deps.log.warn({ err: error, sandbox: record.id }, 'failed to resume from standby; resuming from disk')
    await stopVmm(deps, vmm.record, vmm)
    return undefined
  }
}

async function resumeFromDisk(
  deps: Deps,
  record: PausedVm | DeadVm,
  source: Source,
  request: HostVmResumeBody,
  signal: AbortSignal,
): Promise<RunningVm> {
  const undo = new Undo()
  try {
    return await deps.restoreLimiter(async () => {
      const vmm = await restoreVmm(deps, record, source, request, undo, signal)
      return await runGuest(deps, record, vmm, request, signal)
    }, signal)
  } catch (error) {
    await undo.run(deps.log)
    throw await explainFailure(deps, record, source, error)
  }
}

/** Steps 3 and 4, after the rules are in force. */
async function runGuest(
  deps: Deps,
  record: PausedVm | DeadVm,
  vmm: Vmm,
  { ip, hostname, envs, ssh_pubkeys, cpu_quota_pct, mounts }: HostVmResumeBody,
  signal: AbortSignal,
): Promise<RunningVm> {
  const mounting = openMounts(deps, record.id, vmm, ip)
  try {
    if (mounts) mounting.mounts?.armInBackground(mounts)
    await vmm.resumeCpus()
    const identity = { address: ip, hostname, envs, ssh_pubkeys, ...deps.operatorSettings }
    await applyIdentity(vmm, identity, { isNew: isIdentityPending(record) }, signal)
    if (mounts) mounting.mounts?.setInBackground(mounts)
    await crashPoint('host.resume.awake')
    await span('limit CPU', () => deps.cgroups.limitCpu(vmm.record.id, cpu_quota_pct))
    return { vmm, mounting }
  } catch (error) {
    mounting.signals.abort()
    throw error
  }
}

/**
 * The file system may be smaller than the disk: a resize was interrupted, the disk grew after the generation was saved, or
 * the guest crashed. If it cannot be grown now the sandbox is usable all the same, and the control plane asks again.
 */
async function finishGrowth(
  deps: Deps,
  record: PausedVm | DeadVm,
  { plan, manifest }: Source,
  vmm: Vmm,
  signal: AbortSignal,
): Promise<ResumedDisk> {
  const { diskMib } = plan
  const isGrown = manifest && !manifest.grow_pending && !record.growPending && manifest.disk_mib === diskMib
  if (isGrown) return { diskMib, growPending: false }
  try {
    await span('grow disk', () => growDisk(vmm, diskMib, AbortSignal.any([signal, AbortSignal.timeout(GROW_LIMIT_MS)])))
    return { diskMib, growPending: false }
  } catch (error) {
    deps.log.warn({ err: error, sandbox: record.id, diskMib }, 'failed to grow the file system of a resumed sandbox')
    return { diskMib, growPending: true }
  }
}

function reportLimits(deps: Deps, sandbox: string, { record }: Vmm, ip: string): { limits?: string[] } {
  const limits = listLimits(record.agent, ip)
  if (limits.length === 0) return {}
  deps.log.warn({ sandbox, agent: record.agent, limits }, 'resumed a sandbox whose guest agent is older than this host')
  return { limits }
}

const isIdentityPending = (record: PausedVm | DeadVm): boolean => record.state === 'paused' && record.identityPending

/** The sandbox has another VMM by now, so a failure is only logged. The rest is removed at the next start. */
async function deleteDeadVmm(deps: Deps, dead: VmmRecord): Promise<void> {
  await stopVmm(deps, dead).catch((error) =>
    deps.log.error({ err: error, vmm: dead.id }, 'failed to delete the files of a VMM that exited'),
  )
}
