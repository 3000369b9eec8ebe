/**
 * QEMU's command line, pure and tested flag by flag.
 *
 * A clone's line is the line of its base with three differences: the memory is mapped privately, the state comes in,
 * and there is no kernel. Everything else must be the same to the letter, devices and their order above all: the saved
 * state names them by position. That is why one function makes both.
 *
 * QEMU runs as a user of its own that can enter none of our directories: files reach it as inherited descriptors
 * (`FDS`), only its sockets lie in a directory of its own.
 */

/** What the child finds where; netd opens them in this order (stdin, stdout and stderr come first). */
export const FDS = {
  tap: 3,
  image: 4,
  baseDisk: 5,
  disk: 6,
  ram: 7,
  state: 8,
  kernel: 9,
  initrd: 10,
  console: 11,
} as const

/** What a state file is bound to: if any of it differs, the base is built anew. */
export type Machine = {
  binary: string
  version: string
  /** Versioned, such as pc-q35-7.2: the same machine after an upgrade of QEMU. */
  type: string
  accel: 'kvm' | 'tcg'
  cpu: string
  /** The memory file may be read-only (QEMU 8.2 and later); before, a sealed copy in memory takes its place. */
  readOnlyRam: boolean
}

export type Shape = { vcpu: number; mem_mib: number }

type Common = { machine: Machine; shape: Shape; socketDir: string; mtu: number }
export type BootArgs = Common & { mode: 'boot' }
export type CloneArgs = Common & { mode: 'clone' }

export const SOCKETS = { monitor: 'qmp.sock', agent: 'agent.sock', hello: 'hello.sock' } as const

/** The same in every guest, so that a clone has nothing to change; the namespace around it tells them apart. */
const GUEST_MAC = '02:00:00:00:00:02'

export function renderArgs(options: BootArgs | CloneArgs): string[] {
  const { machine, shape, socketDir } = options
  const isBoot = options.mode === 'boot'
  return [
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-machine', `${machine.type},hpet=off,memory-backend=ram0`],
    ...['-accel', machine.accel === 'tcg' ? 'tcg,thread=multi' : 'kvm'],
    ...['-cpu', machine.cpu, '-m', `${shape.mem_mib}`, '-smp', `${shape.vcpu}`],
    ...['-object', memory(options)],
    ...(isBoot ? kernel(options) : ['-global', 'migration.send-configuration=off', '-incoming', `fd:${FDS.state}`]),
    ...disks(isBoot),
    ...['-device', 'virtio-serial-pci,max_ports=4,id=serial0'],
    ...socket('agent', `${socketDir}/${SOCKETS.agent}`),
    ...['-device', 'virtserialport,chardev=agent,name=warren.agent,nr=1,id=agent0'],
    ...socket('hello', `${socketDir}/${SOCKETS.hello}`),
    ...['-device', 'virtserialport,chardev=hello,name=warren.hello,nr=2,id=hello0'],
    ...['-netdev', `tap,id=n0,fd=${FDS.tap}`],
    ...['-device', `virtio-net-pci,netdev=n0,mac=${GUEST_MAC},romfile=`],
    // Empty slots for what is plugged in later; pcie.0 itself takes nothing while the machine runs.
    ...['-device', 'pcie-root-port,id=rp1,chassis=1,slot=1', '-device', 'pcie-root-port,id=rp2,chassis=2,slot=2'],
    // A boot that fails tells why on its console. A clone's goes nowhere: its root could fill our disk with it.
    ...['-chardev', isBoot ? `file,id=console,path=/dev/fdset/${FDS.console}` : 'null,id=console'],
    ...['-device', 'isa-serial,chardev=console'],
    ...socket('monitor', `${socketDir}/${SOCKETS.monitor}`),
    ...['-mon', 'chardev=monitor,mode=control'],
  ]
}

function memory({ machine, shape, mode }: BootArgs | CloneArgs): string {
  const file = `memory-backend-file,id=ram0,size=${shape.mem_mib}M,mem-path=/proc/self/fd/${FDS.ram}`
  if (mode === 'boot') return `${file},share=on`
  return machine.readOnlyRam ? `${file},share=off,readonly=on,rom=off` : `${file},share=off`
}

function kernel({ machine, mtu }: BootArgs): string[] {
  return [
    ...addFd(FDS.console),
    ...addFd(FDS.state),
    ...['-kernel', `/proc/self/fd/${FDS.kernel}`, '-initrd', `/proc/self/fd/${FDS.initrd}`],
    ...['-append', renderKernelCommandLine(machine.accel, mtu)],
  ]
}

export function renderKernelCommandLine(accel: Machine['accel'], mtu: number): string {
  const always = ['console=ttyS0', 'quiet', 'panic=-1', 'reboot=t', `warren.mtu=${mtu}`, 'random.trust_cpu=on']
  // Emulated timers calibrate slowly and wrongly; address randomisation costs 29 ms for every exec (platform 4.1).
  const emulated = ['tsc=reliable', 'no_timer_check', 'lpj=10000000', 'rcupdate.rcu_expedited=1', 'norandmaps']
  return [...always, ...(accel === 'tcg' ? emulated : [])].join(' ')
}

/** image ← (base disk ←) disk; only the last is written to. */
function disks(isBoot: boolean): string[] {
  const file = (fd: number) => ({ driver: 'file', filename: `/dev/fdset/${fd}`, locking: 'off' })
  const image = { driver: 'raw', 'node-name': 'image', 'read-only': true, file: file(FDS.image) }
  const base = { driver: 'qcow2', 'node-name': 'base', 'read-only': true, backing: 'image', file: file(FDS.baseDisk) }
  const disk = {
    driver: 'qcow2',
    'node-name': 'd0',
    backing: isBoot ? 'image' : 'base',
    discard: 'unmap',
    file: { ...file(FDS.disk), discard: 'unmap' },
  }
  return [
    ...[FDS.image, ...(isBoot ? [] : [FDS.baseDisk]), FDS.disk].flatMap(addFd),
    ...(isBoot ? [image, disk] : [image, base, disk]).flatMap((node) => ['-blockdev', JSON.stringify(node)]),
    ...['-device', 'virtio-blk-pci,drive=d0'],
  ]
}

/** Where `xen-save-devices-state` writes. */
export const STATE_FILENAME = `/dev/fdset/${FDS.state}`

const addFd = (fd: number): string[] => ['-add-fd', `fd=${fd},set=${fd}`]
const socket = (id: string, path: string): string[] => ['-chardev', `socket,id=${id},path=${path},server=on,wait=off`]
