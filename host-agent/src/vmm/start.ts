/**
 * Starts a VMM and leaves its CPUs paused, so that the caller can apply the address and the network rules before the
 * guest runs.
 *
 * Order of events: slot, folder, cgroup, an empty disk on top of the chain, QEMU, the saved pages, the device state. The
 * pages come before the devices, because devices read the guest's memory when they are loaded.
 *
 * Every step registers its undo. The caller runs them if anything fails, here or later.
 */
import { chown, mkdir, rm, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { span } from '@warren/kit/span'
import { GUEST_PROTOCOL } from '@warren/protocol'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import type { Undo } from '../undo.ts'
import { waitForAll } from '../wait-for-all.ts'
import { diskFile, FDS, INCOMING_STATE } from './args.ts'
import { startChain } from './disk/chain.ts'
import { createOverlay } from './disk/qcow2/overlay.ts'
import { type LaunchFiles, launchQemu } from './launch.ts'
import { createVmmCgroup } from './memory.ts'
import type { VmmRecord } from './record.ts'
import { SnapshotDamage } from './snapshot-damage.ts'
import { Vmm } from './vmm.ts'

export type VmmPlan = {
  id: string
  folder: string
  base: Base
  start:
    | { from: 'base' }
    | { from: 'generation'; generation: Pick<Manifest, 'memory' | 'state' | 'needs' | 'generation' | 'agent'> }
    /** Empty memory and a kernel: all that is left of a VM that died without being saved is its disk. */
    | { from: 'disk' }
  /** Objects of the store, oldest first. */
  layers: string[]
  diskMib: number
  /** See `Launch`. */
  outlivesHostAgent: boolean
}

const MIB = 1024 * 1024

export const startVmm = (deps: Deps, plan: VmmPlan, undo: Undo, signal: AbortSignal): Promise<Vmm> =>
  span('start VMM', () => runSteps(deps, plan, undo, signal))

async function runSteps(deps: Deps, plan: VmmPlan, undo: Undo, signal: AbortSignal): Promise<Vmm> {
  const { id, folder, base, layers, start } = plan
  const slot = await span('take slot', () => deps.network.slots.take())
  undo.add('slot', () => deps.network.slots.release(slot))
  const uid = deps.uidOf(slot)
  undo.add('folder', () => rm(folder, { recursive: true, force: true }))
  const work = path.join(folder, 'work')
  await mkdir(work, { recursive: true, mode: 0o700 })
  await chown(work, uid, uid)
  deps.snapshots.retain(id, layers)
  undo.add('layers', () => deps.snapshots.release(id))

  const newest = layers.at(-1)
  const backing = {
    file: newest === undefined ? base.files.disk : deps.snapshots.fileOf(newest),
    format: 'qcow2' as const,
  }
  const [cgroups] = await span('create cgroup and disk', () =>
    waitForAll([
      createVmmCgroup(deps, id, base.shape, undo),
      createOverlay(path.join(work, diskFile(0)), { sizeMib: plan.diskMib, backing, owner: uid }),
    ]),
  )

  const saved = start.from === 'generation' ? start.generation : undefined
  const memoryOver = start.from === 'disk' ? 'zeros' : (saved?.memory.over ?? 'base')
  const machineType = saved?.needs.machine.type ?? deps.machine.type
  const hardware = saved ? (saved.needs.machine.hardware ?? 1) : deps.machine.hardware
  const files = await chooseFiles(deps, plan, memoryOver, uid)
  const { qemu, qmp } = await launchQemu(
    deps,
    {
      id,
      start: start.from === 'disk' ? 'disk' : 'state',
      machineType,
      hardware,
      slot,
      uid,
      shape: base.shape,
      files,
      workFolder: work,
      diskMib: plan.diskMib,
      layers: layers.map((layer) => deps.snapshots.fileOf(layer)),
      logFile: path.join(folder, 'qemu.log'),
      cgroups,
      outlivesHostAgent: plan.outlivesHostAgent,
    },
    undo,
    signal,
  )
  const agent = saved ? saved.agent : { protocol: GUEST_PROTOCOL.CURRENT } // A base or a boot runs the host's own agent.
  const record: VmmRecord = {
    ...{ id, slot, uid, qemu, base: base.key, baseId: base.id, memoryOver, shape: base.shape, machineType, hardware },
    ...(agent && { agent }),
    disk: startChain(layers, saved?.generation ?? null),
    resources: 'held',
  }
  const vmm = new Vmm(deps, record, qmp)
  undo.add('connections', () => vmm.close())
  if (saved) await span('load memory', () => loadMemory(deps, saved.memory, qemu.pid))
  if (start.from !== 'disk') await span('load devices', () => vmm.loadDevices(INCOMING_STATE, signal))
  return vmm
}

async function chooseFiles(
  deps: Deps,
  plan: VmmPlan,
  memoryOver: VmmRecord['memoryOver'],
  uid: number,
): Promise<LaunchFiles> {
  const { base, start } = plan
  const ram =
    memoryOver === 'zeros'
      ? ({ path: await createZeros(plan, uid), flags: 'r+' } as const)
      : ({ path: base.files.ram, flags: 'r' } as const)
  const common = {
    image: { path: base.files.image, flags: 'r' },
    baseDisk: { path: base.files.disk, flags: 'r' },
    ram,
  } satisfies LaunchFiles
  if (start.from === 'disk') {
    const kernel = { path: deps.kernel.vmlinuz, flags: 'r' } as const
    return { ...common, kernel, initrd: { path: deps.initramfs.path, flags: 'r' } }
  }
  const state = start.from === 'generation' ? deps.snapshots.fileOf(start.generation.state.id) : base.files.state
  return { ...common, state: { path: state, flags: 'r' } }
}

/** A file without a single block, to be mapped as empty memory. One per VMM, because QEMU may open it for writing. */
async function createZeros(plan: VmmPlan, uid: number): Promise<string> {
  const file = path.join(plan.folder, 'zeros')
  await writeFile(file, '', { mode: 0o600 })
  await truncate(file, plan.base.shape.mem_mib * MIB)
  await chown(file, uid, uid)
  return file
}

/** The pages are compared with their checksums as they are loaded. */
async function loadMemory(deps: Deps, memory: Manifest['memory'], pid: number): Promise<void> {
  const damage = await deps.workers.run('loadMemory', {
    pid,
    fd: FDS.ram,
    file: deps.snapshots.fileOf(memory.id),
    saved: memory,
  })
  if (damage !== undefined) throw new SnapshotDamage(`its memory cannot be used: ${damage}`)
}
