/**
 * A body comes to be: folder, slot, cgroup, a disk of its own over what it starts from, QEMU, memory, devices. It is
 * left standing still: whoever wants it sets its address and its rules first, then lets it go. Every step names its
 * way back; whoever calls runs them when anything fails.
 *
 * The saved pages are in place before the devices come in: they look into the guest's memory when they are loaded.
 */
import { chown, mkdir, rm, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import type { Undo } from '@warren/kit/undo'
import type { Base } from '../bases/base.ts'
import type { Deps } from '../deps.ts'
import type { Manifest } from '../snapshots/manifest.ts'
import { diskFile, FDS, INCOMING_STATE } from './args.ts'
import { createOverlay } from './disk/qcow2/overlay.ts'
import { type LaunchFiles, launchQemu } from './launch.ts'
import { Vmm, type VmmRecord } from './vmm.ts'

export type VmmPlan = {
  id: string
  home: string
  base: Base
  /** A generation to go on from; without one it is a clone of the base, or a boot from a disk (`disk`). */
  from?: Pick<Manifest, 'memory' | 'state' | 'needs' | 'generation'>
  /** Boots from these layers with empty memory: all that is left of a machine that died. */
  boot?: true
  layers: string[]
  diskMib: number
  /** Outlives the host agent, in a cgroup of its own. What only proves a base dies with whoever builds it. */
  lasting: boolean
}

/** What was saved is not what is there any more. */
export class Damage extends Error {
  override name = 'Damage'
}

/** Beside the guest's memory: translated code, device buffers, QEMU itself. */
const QEMU_NEEDS_MIB = 512

export async function startVmm(deps: Deps, plan: VmmPlan, undo: Undo, signal: AbortSignal): Promise<Vmm> {
  const { id, home, base, layers } = plan
  const slot = await deps.network.slots.take()
  undo.add('slot', () => deps.network.slots.release(slot))
  const uid = deps.uidOf(slot)
  undo.add('folder', () => rm(home, { recursive: true, force: true }))
  const work = path.join(home, 'work')
  await mkdir(work, { recursive: true, mode: 0o700 })
  await chown(work, uid, uid)
  deps.snapshots.retain(id, layers)
  undo.add('layers', () => deps.snapshots.release(id))

  const top = layers.at(-1)
  const disk = path.join(work, diskFile(0))
  const backing = { file: top === undefined ? base.files.disk : deps.snapshots.fileOf(top), format: 'qcow2' as const }
  const [cgroups] = await Promise.all([
    plan.lasting ? createCgroup(deps, id, base.shape.mem_mib, undo) : [],
    createOverlay(disk, { sizeMib: plan.diskMib, backing, owner: uid }),
  ])

  const type = plan.from?.needs.machine.type ?? deps.machine.type
  const { qemu, qmp } = await launchQemu(
    deps,
    {
      id,
      start: plan.boot ? 'disk' : 'state',
      type,
      slot,
      uid,
      shape: base.shape,
      files: { ...(await filesOf(deps, plan, uid)), work: { path: work, flags: 'r' } },
      layers: layers.map((layer) => deps.snapshots.fileOf(layer)),
      logFile: path.join(home, 'qemu.log'),
      cgroups,
      lasting: plan.lasting,
    },
    undo,
    signal,
  )
  const over = plan.boot || plan.from?.memory.over === 'zeros' ? 'zeros' : 'base'
  const from = plan.from && { from: plan.from.generation }
  const about = { base: base.key, baseId: base.id, over, shape: base.shape, type, layers } satisfies Partial<VmmRecord>
  const record: VmmRecord = { id, slot, uid, qemu, ...about, ...from }
  const body = new Vmm(deps, record, qmp)
  undo.add('connections', () => body.close())
  if (plan.from) await fillMemory(deps, plan.from.memory, qemu.pid)
  if (!plan.boot) await body.loadDevices(INCOMING_STATE, signal)
  return body
}

/**
 * Where the base's memory is a sealed copy in memory (net/sealed.ts), every page of it that a guest is the first to
 * touch is charged to that guest, on top of its own: the kernel fills the copy's holes when they are read. A limit
 * without room for both would kill a sandbox that uses all of its memory.
 */
async function createCgroup(deps: Deps, id: string, memMib: number, undo: Undo): Promise<string[]> {
  undo.add('cgroup', () => deps.cgroups.remove(id))
  const guestMib = deps.machine.readOnlyRam ? memMib : 2 * memMib
  const memoryBytes = (guestMib + QEMU_NEEDS_MIB) * 1024 * 1024
  return (await deps.cgroups.create(id, { memoryBytes })).procs
}

async function filesOf(deps: Deps, plan: VmmPlan, uid: number): Promise<LaunchFiles> {
  const { base, from } = plan
  const disks = {
    image: { path: base.files.image, flags: 'r' },
    baseDisk: { path: base.files.disk, flags: 'r' },
  } satisfies LaunchFiles
  const zeros = plan.boot || from?.memory.over === 'zeros'
  const ram = zeros
    ? ({ path: await createZeros(plan, uid), flags: 'r+' } as const)
    : ({ path: base.files.ram, flags: deps.machine.readOnlyRam ? 'r' : 'sealed' } as const)
  if (!plan.boot) {
    const state = from ? deps.snapshots.fileOf(from.state.id) : base.files.state
    return { ...disks, ram, state: { path: state, flags: 'r' } }
  }
  const kernel = { path: deps.kernel.vmlinuz, flags: 'r' } as const
  return { ...disks, ram, kernel, initrd: { path: deps.initramfs.path, flags: 'r' } }
}

/** Empty memory to map privately: a file without a single block, of its own since QEMU may want to write to it. */
async function createZeros(plan: VmmPlan, uid: number): Promise<string> {
  const file = path.join(plan.home, 'zeros')
  await writeFile(file, '', { mode: 0o600 })
  await truncate(file, plan.base.shape.mem_mib * 1024 * 1024)
  await chown(file, uid, uid)
  return file
}

async function fillMemory(deps: Deps, memory: Manifest['memory'], pid: number): Promise<void> {
  const wrong = await deps.workers.run('loadMemory', {
    pid,
    fd: FDS.ram,
    file: deps.snapshots.fileOf(memory.id),
    saved: memory,
  })
  if (wrong !== undefined) throw new Damage(`its memory cannot be used: ${wrong}`)
}
