/**
 * The disk chain: the qcow2 files that together are the disk of a VM, oldest first.
 *
 *   image ← base disk ← layers … ← disk 0 ← disk 1 ← … ← active disk
 *
 * `layers` are objects of the snapshot store. They are read-only and may be shared with other VMs. The disks are files
 * of one VMM, numbered from 0 in its work folder. Each file holds only what was written while it was the newest one, so
 * a cluster is read from the newest file that has it.
 *
 * Invariants:
 *
 *   1. Only the active disk, the one with the highest number, is written. Freezing it makes it permanently read-only and
 *      starts the next one on top.
 *   2. A number is used once per VMM. A frozen disk becomes an object named after its VMM and number, so a reused
 *      number would give one name two contents.
 *   3. If `generation` is set, everything below disk `firstUnsaved` has the content of that generation's disk. The disk
 *      of the VM is therefore the layers of that generation plus the disks from `firstUnsaved` on. The generation may
 *      describe the same content with fewer objects than QEMU has open, because layers are merged in the background.
 *   4. If `generation` is null, everything below disk `firstUnsaved` has the content of `layers`: no disk of this VMM is
 *      part of a generation of its sandbox, and disks that live forks froze may have been merged into a layer.
 *   5. Replacing what lies below the active disk with other files of the same content changes no number.
 *   6. In a live fork the active disk is frozen before the CPUs run again, so the saved memory and disk are of the same
 *      moment (vms/fork.ts).
 *
 * The functions here are pure. live.ts makes QEMU and the file system follow.
 */
import { type Static, Type } from 'typebox'

const Count = Type.Integer({ minimum: 0 })

export const DiskChain = Type.Object({
  layers: Type.Array(Type.String(), {
    description: "Objects between the base's disk and the disks of the VMM, oldest first.",
  }),
  generation: Type.Union([Type.Integer({ minimum: 1 }), Type.Null()]),
  firstUnsaved: Count,
  /** As of the last write of the record. A live fork raises it without a write, so an adopted VMM asks QEMU. */
  active: Count,
  standbyFreezes: Type.Integer({
    minimum: 0,
    description: 'How often the chain grew on standby since it was last shortened.',
  }),
})
export type DiskChain = Static<typeof DiskChain>

/** The chain of a VMM that was just started. `generation`: the one it was restored from, null for a clone or a boot. */
export const startChain = (layers: readonly string[], generation: number | null): DiskChain => ({
  layers: [...layers],
  generation,
  firstUnsaved: 0,
  active: 0,
  standbyFreezes: 0,
})

/** After a live fork: the frozen disk is in the children's generation, but in no generation of this sandbox. */
export const freezeActive = (chain: DiskChain): DiskChain => ({ ...chain, active: chain.active + 1 })

/** After a pause: everything up to the frozen disk was saved as `generation`. */
export const freezeSaved = (chain: DiskChain, generation: number): DiskChain => ({
  ...chain,
  generation,
  active: chain.active + 1,
  firstUnsaved: chain.active + 1,
  standbyFreezes: chain.standbyFreezes + 1,
})

/** The files below the active disk were replaced by the layers of `chain.generation`, which have the same content. */
export function replaceLayers(chain: DiskChain, layers: readonly string[]): DiskChain {
  if (chain.generation === null) throw new Error('the layers below the active disk are in no generation')
  if (chain.firstUnsaved !== chain.active) {
    throw new Error(`disks ${chain.firstUnsaved} to ${chain.active - 1} are in no generation and cannot be replaced`)
  }
  return { ...chain, layers: [...layers], standbyFreezes: 0 }
}

/** `layers` have the content of everything below the active disk: the disks that live forks froze were merged into them. */
export const mergeFrozen = (chain: DiskChain, layers: readonly string[]): DiskChain => ({
  ...startChain(layers, null),
  firstUnsaved: chain.active,
  active: chain.active,
})

/** The disks below the active one that are in no generation of this sandbox: live forks froze them. */
export const frozenDisks = (chain: DiskChain): number[] => unsavedDisks(chain).slice(0, -1)

/** The disks that a save has to add to the generation below them. */
export const unsavedDisks = ({ firstUnsaved, active }: DiskChain): number[] =>
  Array.from({ length: active + 1 - firstUnsaved }, (_, i) => firstUnsaved + i)

/**
 * The layers below the unsaved disks. `ofGeneration` are those of `chain.generation` in the store, undefined if there
 * is no such generation or its manifest cannot be read.
 */
export function layersBelowUnsaved(chain: DiskChain, ofGeneration: readonly string[] | undefined): readonly string[] {
  if (ofGeneration) return ofGeneration
  if (chain.generation === null) return chain.layers
  // Only that generation names the disks below. Without it, a disk with a gap would be saved.
  if (chain.firstUnsaved > 0) throw new Error(`generation ${chain.generation}, which it continues, cannot be read`)
  return chain.layers
}

/** The store's name for a disk. It follows from VMM and number, so that taking a disk in twice has no effect. */
export const diskObject = (vmmId: string, disk: number): string => `${vmmId}-d${disk}`
