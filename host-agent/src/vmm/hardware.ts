/**
 * The versions of the machine that guests see, apart from the devices that renderArgs adds. A saved device state can only be
 * loaded by a machine of the version it was saved with, so an old version stays here for as long as snapshots of it may exist.
 *
 * A new base, and a VM that is booted from its disk, get the newest version. It is part of the machine that a base is keyed
 * by. A record of a VMM and the manifest of a generation have it too; where it is absent, it is 1.
 */
import type { Machine } from './args.ts'

export const HARDWARE_VERSION = 2

/** Devices of the machine type that no guest needs: each is code of QEMU that a hostile guest could attack. */
const SWITCHED_OFF: Record<number, readonly string[]> = {
  1: ['hpet'],
  2: ['hpet', 'sata', 'smbus', 'i8042', 'vmport', 'smm', 'usb', 'mem-merge'],
}

/** Options of `-machine`, after its type. */
export function renderHardware({ hardware, accel }: Pick<Machine, 'hardware' | 'accel'>): string {
  const off = SWITCHED_OFF[hardware]
  if (off === undefined)
    throw new Error(`hardware version ${hardware} is not known, only versions up to ${HARDWARE_VERSION}`)
  return [...off, ...(needsPit(hardware, accel) ? [] : ['pit'])].map((name) => `${name}=off`).join()
}

export const isKnownHardware = (version: number): boolean => Object.hasOwn(SWITCHED_OFF, version)

/**
 * With KVM the kernel learns the frequency of its clock from the host. Emulated, it measures it with the PIT: without one the
 * clock of a guest was 20 % fast.
 */
const needsPit = (hardware: number, accel: Machine['accel']): boolean => hardware === 1 || accel === 'tcg'
