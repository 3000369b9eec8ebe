/**
 * QEMU's command line, pure and tested flag by flag.
 *
 * A restored machine's line is the line of its base with three differences: the memory is mapped privately, the state
 * comes in, and there is no kernel. Everything else must be the same to the letter, devices and their order above all:
 * the saved state names them by position. That is why one function makes both.
 *
 * QEMU runs as a user of its own that can enter none of our directories: files reach it as inherited descriptors
 * (`FDS`). One of them is a folder of its own, in which it finds its disk and writes its state; its sockets lie in
 * another.
 */

/** What the child finds where (stdin, stdout and stderr come first). */
export const FDS = {
  tap: 3,
  image: 4,
  baseDisk: 5,
  /** A folder: all that QEMU writes to by name. */
  work: 6,
  ram: 7,
  state: 8,
  kernel: 9,
  initrd: 10,
  console: 11,
  /** And the next ones: what earlier generations have written, the oldest first. */
  firstLayer: 12,
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

/**
 * What it starts from: the image, to become a base; a disk somebody has used, of a machine that died; or a saved state,
 * which comes in when the monitor says so.
 */
export type Start = 'base' | 'disk' | 'state'
export type QemuOptions = {
  start: Start
  machine: Machine
  shape: Shape
  socketDir: string
  mtu: number
  /** How many layers of disk lie between the base's and its own. */
  layers: number
}

export const SOCKETS = { monitor: 'qmp.sock', agent: 'agent.sock', hello: 'hello.sock' } as const

const INCOMING = ['-global', 'migration.send-configuration=off', '-incoming', 'defer']

/** The same in every guest, so that a clone has nothing to change; the namespace around it tells them apart. */
const GUEST_MAC = '02:00:00:00:00:02'

export function renderArgs(options: QemuOptions): string[] {
  const { machine, shape, socketDir } = options
  const isBase = options.start === 'base'
  return [
    ...['-nodefaults', '-no-user-config', '-display', 'none', '-no-reboot'],
    ...['-sandbox', 'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny'],
    ...['-machine', `${machine.type},hpet=off,memory-backend=ram0`],
    ...['-accel', machine.accel === 'tcg' ? 'tcg,thread=multi' : 'kvm'],
    ...['-cpu', machine.cpu, '-m', `${shape.mem_mib}`, '-smp', `${shape.vcpu}`],
    ...['-object', memory(options)],
    ...(options.start === 'state' ? INCOMING : kernel(options)),
    // Rules first, then the guest: whoever made it lets it go.
    ...(options.start === 'disk' ? ['-S'] : []),
    ...disks(options),
    ...['-device', 'virtio-serial-pci,max_ports=4,id=serial0'],
    ...socket('agent', `${socketDir}/${SOCKETS.agent}`),
    ...['-device', 'virtserialport,chardev=agent,name=warren.agent,nr=1,id=agent0'],
    ...socket('hello', `${socketDir}/${SOCKETS.hello}`),
    ...['-device', 'virtserialport,chardev=hello,name=warren.hello,nr=2,id=hello0'],
    ...['-netdev', `tap,id=n0,fd=${FDS.tap}`],
    ...['-device', `virtio-net-pci,netdev=n0,mac=${GUEST_MAC},romfile=`],
    // Empty slots for what is plugged in later; pcie.0 itself takes nothing while the machine runs.
    ...['-device', 'pcie-root-port,id=rp1,chassis=1,slot=1', '-device', 'pcie-root-port,id=rp2,chassis=2,slot=2'],
    // A base that does not boot tells why on its console. A sandbox's goes nowhere: its root could fill our disk.
    ...(isBase ? addFd(FDS.console) : []),
    ...['-chardev', isBase ? `file,id=console,path=/dev/fdset/${FDS.console}` : 'null,id=console'],
    ...['-device', 'isa-serial,chardev=console'],
    ...socket('monitor', `${socketDir}/${SOCKETS.monitor}`),
    ...['-mon', 'chardev=monitor,mode=control'],
  ]
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
  // Emulated timers calibrate slowly and wrongly; address randomisation costs 29 ms for every exec (platform 4.1).
  const emulated = ['tsc=reliable', 'no_timer_check', 'lpj=10000000', 'rcupdate.rcu_expedited=1', 'norandmaps']
  return [...always, ...(accel === 'tcg' ? emulated : [])].join(' ')
}

/** image ← base disk ← layers ← disk; a base has only the first and the last. Only the last is written to. */
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

/** A file of QEMU's own folder, as QEMU names it: it could not walk there from the root. */
export const inWork = (name: string): string => `/proc/self/fd/${FDS.work}/${name}`
/** A machine begins with disk 0; each fork taken from it while it runs freezes its disk and begins the next. */
export const diskFile = (n: number): string => `disk-${n}.qcow2`
export const diskNode = (n: number): string => `d${n}`
/** Where a state is saved, and where one to be loaded is found. */
export const STATE_FILE = 'state'
export const INCOMING_STATE = `fd:${FDS.state}`

const addFd = (fd: number): string[] => ['-add-fd', `fd=${fd},set=${fd}`]
const socket = (id: string, path: string): string[] => ['-chardev', `socket,id=${id},path=${path},server=on,wait=off`]
