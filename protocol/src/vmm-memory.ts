/**
 * The memory of a VMM: that of its guest, and what QEMU needs beside it. The host limits the VMM's cgroup to it, and the
 * control plane reserves it on the host, so the two must agree.
 *
 * What QEMU needs was measured with `npm run bench -- vmm-memory`, under the heaviest load that we know a guest can cause
 * (bench/src/rows/vmm-memory.ts): 137 MiB with one emulated vCPU, of which 96 MiB were translated code. The rest is room for the
 * page cache, without which a guest that uses all its memory would read every block of its disk again, and for what the load
 * does not show.
 */

/** Programs, libraries, devices and their buffers, the disk's metadata, the kernel's memory for the process. */
const QEMU_MIB = 48
/** Stack, registers and buffers of a virtual CPU; with emulation also its share of tables of translated code. */
const VCPU_MIB = { kvm: 4, tcg: 8 } as const
/** Requests to the disk in flight, and metadata of a disk with many layers. */
const DISK_MIB = 32
/**
 * Translated code of an emulated guest (`tb-size`). When it is full, QEMU drops all of it and translates again. Without a
 * limit it is up to 1 GiB, and a guest decides how much of it is used.
 */
const TRANSLATION_MIB = { first: 96, more: 32 } as const
/** The index of the translated code, in parts of its size. */
const TRANSLATION_INDEX = 0.25

export type Acceleration = 'kvm' | 'tcg'
type VmmShape = { vcpu: number; mem_mib: number }

/** The size of QEMU's buffer for translated code. */
export const translationMib = (vcpu: number): number => TRANSLATION_MIB.first + (vcpu - 1) * TRANSLATION_MIB.more

/** What the VMM needs beside the guest's memory. */
export function vmmOverheadMib({ vcpu }: Pick<VmmShape, 'vcpu'>, accel: Acceleration): number {
  const common = QEMU_MIB + DISK_MIB + vcpu * VCPU_MIB[accel]
  return accel === 'kvm' ? common : common + Math.ceil(translationMib(vcpu) * (1 + TRANSLATION_INDEX))
}

export const vmmMemoryMib = (shape: VmmShape, accel: Acceleration): number =>
  shape.mem_mib + vmmOverheadMib(shape, accel)
