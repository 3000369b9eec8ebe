/**
 * QEMU's command line, as a pure function.
 *
 * The command line of a restored VM is that of its base with three differences: the memory is mapped privately, a saved
 * state is loaded, and there is no kernel. Everything else must be identical, most of all the devices and their order,
 * because the saved state refers to them by position. That is why one function renders both.
 *
 * WARNING: any change to the command line of a restored VM changes the key of every base, so all bases are built again
 * (bases/ensure.ts). A change to its `-machine` options is a new version in hardware.ts. A change to its `-device` arguments,
 * such as a new device, makes every saved sandbox incompatible, unless it depends on that version: a generation records
 * the list of devices, and on a host with another list its resume fails with `snapshot_incompatible` (compatibility.ts).
 *
 * QEMU runs under a private user id that can enter none of the host agent's folders, so it receives its files as
 * inherited descriptors (`FDS`). One of them is its work folder, with its disks and the state it writes. Its sockets are
 * in another folder.
 */
import { GUEST_MAC } from '../net/names.ts'
import { renderHardware } from './hardware.ts'

/** The descriptors of the QEMU process, after stdin, stdout and stderr. */
export const FDS = {
  tap: 3,
  image: 4,
  baseDisk: 5,
  /** The work folder: the only place where QEMU opens files by name. */
  work: 6,
  ram: 7,
  state: 8,
  kernel: 9,
  initrd: 10,
  console: 11,
  /** The first of any number: disk layers of saved generations, oldest first. */
  firstLayer: 12,
} as const

/** What a saved device state depends on: if any of it differs, the base is built again. */
export type Machine = {
  binary: string
  version: string
  /** Versioned, such as pc-q35-7.2, so that the machine stays the same after an upgrade of QEMU. */
  type: string
  /** See hardware.ts. */
  hardware: number
  accel: 'kvm' | 'tcg'
  cpu: string
  /** Whether the memory file may be read-only (QEMU 8.2 and later). Otherwise read-only-ram/ opens it. */
  readOnlyRam: boolean
}

export type Shape = { vcpu: number; mem_mib: number }

/**
 * What the VM starts from. `base`: a cold boot of the image, to become a base. `disk`: a cold boot of a used disk, of a
 * VM that died. `state`: a saved state, loaded by a command to the monitor.
 */
export type Start = 'base' | 'disk' | 'state'
export type QemuOptions = {
  start: Start
  machine: Machine
  shape: Shape
  socketDir: string
  mtu: number
  /** Limit of translated code under emulation. It changes nothing that the guest sees, so keys of bases leave it out. */
  translationMib?: number
  /** Number of disk layers between the base's disk and the VMM's first one. */
  layers: number
}

export const SOCKETS = { monitor: 'qmp.sock', agent: 'agent.sock', hello: 'hello.sock' } as const

const INCOMING = ['-global', 'migration.send-configuration=off', '-incoming', 'defer']

export function renderArgs(options: QemuOptions): string[] {
  const { machine, shape, socketDir } = options
  const isBase = options.start === 'base'
  return [
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-machine', `${machine.type},${renderHardware(machine)},memory-backend=ram0`],
    ...['-accel', accelerator(options)],
    ...['-cpu', machine.cpu, '-m', `${shape.mem_mib}`, '-smp', `${shape.vcpu}`],
    ...['-object', memory(options)],
    ...(options.start === 'state' ? INCOMING : kernel(options)),
    // The CPUs start paused: the network rules are applied before the guest runs.
    ...(options.start === 'disk' ? ['-S'] : []),
    ...disks(options),
    ...['-device', 'virtio-serial-pci,max_ports=4,id=serial0'],
    ...socket('agent', `${socketDir}/${SOCKETS.agent}`),
    ...['-device', 'virtserialport,chardev=agent,name=warren.agent,nr=1,id=agent0'],
    ...socket('hello', `${socketDir}/${SOCKETS.hello}`),
    ...['-device', 'virtserialport,chardev=hello,name=warren.hello,nr=2,id=hello0'],
    ...['-netdev', `tap,id=n0,fd=${FDS.tap}`],
    ...['-device', `virtio-net-pci,netdev=n0,mac=${GUEST_MAC},romfile=`],
    // Empty ports for hot-plugged devices; pcie.0 itself cannot take any while the VM runs.
    ...['-device', 'pcie-root-port,id=rp1,chassis=1,slot=1', '-device', 'pcie-root-port,id=rp2,chassis=2,slot=2'],
    // The console of a base explains why it does not boot. A sandbox has none: its root user could fill the host's disk.
    ...(isBase ? addFd(FDS.console) : []),
    ...['-chardev', isBase ? `file,id=console,path=/dev/fdset/${FDS.console}` : 'null,id=console'],
    ...['-device', 'isa-serial,chardev=console'],
    ...socket('monitor', `${socketDir}/${SOCKETS.monitor}`),
    ...['-mon', 'chardev=monitor,mode=control'],
  ]
}

function accelerator({ machine, translationMib }: QemuOptions): string {
  if (machine.accel === 'kvm') return 'kvm'
  return translationMib === undefined ? 'tcg,thread=multi' : `tcg,thread=multi,tb-size=${translationMib}`
}

function memory({ machine, shape, start }: QemuOptions): string {
  const file = `memory-backend-file,id=ram0,size=${shape.mem_mib}M,mem-path=/proc/self/fd/${FDS.ram}`
  if (start === 'base') return `${file},share=on`
  return machine.readOnlyRam ? `${file},share=off,readonly=on,rom=off` : `${file},share=off`
}

function kernel({ machine, mtu }: QemuOptions): string[] {
  return [
    ...['-kernel', `/proc/self/fd/${FDS.kernel}`, '-initrd', `/proc/self/fd/${FDS.initrd}`],
    ...['-append', renderKernelCommandLine(machine.accel, mtu)],
  ]
}

export function renderKernelCommandLine(accel: Machine['accel'], mtu: number): string {
  const always = ['console=ttyS0', 'quiet', 'panic=-1', 'reboot=t', `warren.mtu=${mtu}`, 'random.trust_cpu=on']
  // Emulated timers calibrate slowly and wrongly. Address space randomisation costs 29 ms per exec under emulation.
  const emulated = ['tsc=reliable', 'no_timer_check', 'lpj=10000000', 'rcupdate.rcu_expedited=1', 'norandmaps']
  return [...always, ...(accel === 'tcg' ? emulated : [])].join(' ')
}

/** image ← base disk ← layers ← disk 0 (disk/chain.ts). A base being built has only the image and disk 0. */
function disks({ start, layers }: QemuOptions): string[] {
  const file = (filename: string) => ({ driver: 'file', filename, locking: 'off' })
  const lower = start === 'base' ? [] : [FDS.baseDisk, ...Array.from({ length: layers }, (_, i) => FDS.firstLayer + i)]
  const image = { driver: 'raw', 'node-name': 'image', 'read-only': true, file: file(`/dev/fdset/${FDS.image}`) }
  const chain: { 'node-name': string }[] = [image]
  for (const fd of lower) {
    const backing = chain.at(-1)?.['node-name']
    const name = fd === FDS.baseDisk ? 'base' : `layer${fd - FDS.firstLayer}`
    const node = { driver: 'qcow2', 'node-name': name, 'read-only': true, backing, file: file(`/dev/fdset/${fd}`) }
    chain.push(node)
  }
  const disk = {
    driver: 'qcow2',
    'node-name': diskNode(0),
    backing: chain.at(-1)?.['node-name'],
    discard: 'unmap',
    file: { ...file(inWork(diskFile(0))), discard: 'unmap' },
  }
  return [
    ...[FDS.image, ...lower].flatMap(addFd),
    ...[...chain, disk].flatMap((node) => ['-blockdev', JSON.stringify(node)]),
    ...['-device', `virtio-blk-pci,drive=${diskNode(0)}`],
  ]
}

/** A file in the work folder, as QEMU names it. */
export const inWork = (name: string): string => `/proc/self/fd/${FDS.work}/${name}`
/** A VMM starts with disk 0. Each time its disk is frozen, the next number becomes active. */
export const diskFile = (n: number): string => `disk-${n}.qcow2`
export const diskNode = (n: number): string => `d${n}`
/** File that a device state is saved to, and URI that one is loaded from. */
export const STATE_FILE = 'state'
export const INCOMING_STATE = `fd:${FDS.state}`

const addFd = (fd: number): string[] => ['-add-fd', `fd=${fd},set=${fd}`]
const socket = (id: string, path: string): string[] => ['-chardev', `socket,id=${id},path=${path},server=on,wait=off`]
