/**
 * A sandbox comes to be: record, slot with its address and rules, cgroup, clone, identity. The network's rules are in
 * force before the guest runs a user's byte, because the slot is claimed before QEMU starts. Every step names its way
 * back; whoever calls runs them when anything fails.
 */
import { mkdir, rm } from 'node:fs/promises'
import type { Undo } from '@warren/kit/undo'
import type { HostVmCreateBody, HostVmCreated } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { HostError } from '../host-error.ts'
import { ensureBase } from './base.ts'
import { startClone, wakeGuest } from './clone.ts'
import type { VmRecord } from './registry.ts'
import { Vm } from './vm.ts'

/** Beside the guest's memory: translated code, device buffers, QEMU itself. */
const QEMU_NEEDS_MIB = 512

export async function createVm(
  deps: Deps,
  body: HostVmCreateBody,
  record: VmRecord,
  undo: Undo,
  signal: AbortSignal,
): Promise<{ vm: Vm; created: HostVmCreated }> {
  const startedAt = performance.now()
  const image = await deps.images.find(body.image)
  if (!image) throw new HostError('image_not_ready', await describeImage(deps, body.image))
  if (body.disk_mib < image.minDiskMib) {
    throw new HostError('disk_too_small', `${body.image} needs a disk of at least ${image.minDiskMib} MiB`)
  }
  const shape = { vcpu: body.vcpu, mem_mib: body.mem_mib }
  const base = await abortable(ensureBase(deps, image, shape, body.disk_mib), signal)

  return deps.restoreGate(async () => {
    signal.throwIfAborted()
    const slot = await deps.network.slots.take()
    undo.add('slot', () => deps.network.slots.release(slot))
    Object.assign(record, { slot, uid: deps.uidOf(slot), base: base.key } satisfies Partial<VmRecord>)
    const home = deps.registry.homeOf(body.id)
    undo.add('folder', () => rm(home, { recursive: true, force: true }))
    await rm(home, { recursive: true, force: true })
    await mkdir(home, { recursive: true, mode: 0o700 })
    await deps.registry.write(record)
    undo.add('cgroup', () => deps.cgroups.remove(body.id))
    const memoryBytes = (body.mem_mib + QEMU_NEEDS_MIB) * 1024 * 1024
    const [cgroup] = await Promise.all([
      deps.cgroups.create(body.id, { memoryBytes }),
      deps.network.slots.give(slot, body.ip),
    ])

    const place = { slot, uid: record.uid, home, diskMib: body.disk_mib, cgroups: cgroup.procs, lasting: true }
    const clone = await startClone(deps, { id: body.id, base, ...place }, undo, signal)
    Object.assign(record, { qemu: clone.qemu } satisfies Partial<VmRecord>)
    await deps.registry.write(record)
    const { hostname, envs, ssh_pubkeys } = body
    await wakeGuest(clone.channel, { hostname, envs, ssh_pubkeys }, signal)
    // Only now: a start held to a quarter of a core would take four times as long.
    await deps.cgroups.limitCpu(body.id, body.cpu_quota_pct)
    record.state = 'running'
    await deps.registry.write(record)
    const spawn_ms = Math.round((performance.now() - startedAt) * 10) / 10
    return { vm: new Vm(record, clone.qmp, clone.sockets, clone.channel), created: { spawn_ms, how: 'clone' as const } }
  }, signal)
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
