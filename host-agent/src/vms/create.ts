/**
 * A sandbox comes to be: a body from the pool or a new clone of the base, its address with the rules in force before
 * the guest runs a user's byte, identity, record.
 */
import type { Undo } from '@warren/kit/undo'
import type { HostVmCreateBody, HostVmCreated } from '@warren/protocol'
import { type Base, ensureBase } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { applyIdentity, growDisk } from '../vmm/apply-identity.ts'
import { startVmm } from '../vmm/start.ts'
import { newVmmId, stopVmm, type Vmm, vmmFolderOf } from '../vmm/vmm.ts'

/** What is left of a create's time after a boot must be enough for a clone on a busy machine. */
const CLONE_NEEDS_MS = 5_000

export type CreatedVm = { body: Vmm; created: HostVmCreated }

/** `note` writes down whose body it is; it takes its time on disk while the guest takes its own. */
export async function createVm(
  deps: Deps,
  body: HostVmCreateBody,
  note: (body: Vmm) => Promise<void>,
  undo: Undo,
  signal: AbortSignal,
): Promise<CreatedVm> {
  const startedAt = performance.now()
  const image = await deps.images.find(body.image)
  if (!image) throw new HostError('image_not_ready', await describeImage(deps, body.image))
  if (body.disk_mib < image.minDiskMib) {
    throw new HostError('disk_too_small', `${body.image} needs a disk of at least ${image.minDiskMib} MiB`)
  }
  const shape = { vcpu: body.vcpu, mem_mib: body.mem_mib }
  // Not that it cannot be started: whoever comes again finds it ready.
  const comeAgain = () =>
    new HostError('image_not_ready', `${body.image} is being booted for its first sandbox of this shape`)
  const base = await abortable(ensureBase(deps, image, shape, body.disk_mib), signal).catch((error) => {
    throw (error as Error).name === 'TimeoutError' ? comeAgain() : error
  })
  if (body.limit_ms - (performance.now() - startedAt) < CLONE_NEEDS_MS) throw comeAgain()

  const pooled = deps.pool.take(base)
  if (pooled) {
    undo.add('body', () => stopVmm(deps, pooled.record, pooled))
    await settleBoth(serve(deps, pooled, base, body, signal), note(pooled))
  }
  const made = pooled ?? (await deps.restoreLimiter(() => makeClone(deps, base, body, note, undo, signal), signal))
  const spawn_ms = Math.round((performance.now() - startedAt) * 10) / 10
  return { body: made, created: { spawn_ms, how: pooled ? 'pool' : 'clone' } }
}

async function makeClone(
  deps: Deps,
  base: Base,
  body: HostVmCreateBody,
  note: (body: Vmm) => Promise<void>,
  undo: Undo,
  signal: AbortSignal,
): Promise<Vmm> {
  signal.throwIfAborted()
  const id = newVmmId()
  const plan = { id, home: vmmFolderOf(deps, id), base, layers: [], diskMib: base.diskMib, lasting: true }
  const made = await startVmm(deps, plan, undo, signal)
  await settleBoth(serve(deps, made, base, body, signal), note(made))
  return made
}

/** Whichever fails, both have ended before anything is taken back. */
async function settleBoth(one: Promise<void>, other: Promise<void>): Promise<void> {
  for (const result of await Promise.allSettled([one, other])) if (result.status === 'rejected') throw result.reason
}

async function serve(
  deps: Deps,
  made: Vmm,
  base: Base,
  { ip, network, hostname, envs, ssh_pubkeys, disk_mib, cpu_quota_pct }: HostVmCreateBody,
  signal: AbortSignal,
): Promise<void> {
  await deps.network.slots.give(made.record.slot, ip, network)
  await made.resumeCpus()
  if (disk_mib > base.diskMib) await growDisk(made, disk_mib, signal)
  await applyIdentity(made, { hostname, envs, ssh_pubkeys }, { born: true }, signal)
  // Only now: a start held to a quarter of a core would take four times as long.
  await deps.cgroups.limitCpu(made.record.id, cpu_quota_pct)
}

async function describeImage(deps: Deps, name: string): Promise<string> {
  const image = (await deps.images.list()).find((one) => one.name === name)
  if (!image) return `${name} is not on this host`
  return `${name} is ${image.state}${image.progress ? `: ${image.progress}` : ''}`
}

/** The base goes on being built for the next one; this caller stops waiting. */
function abortable<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    if (signal.aborted) return reject(signal.reason)
    const stop = () => reject(signal.reason)
    signal.addEventListener('abort', stop, { once: true })
    work.then(resolve, reject).finally(() => signal.removeEventListener('abort', stop))
  })
}
