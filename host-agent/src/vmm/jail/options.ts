/** The command line of the jail that QEMU runs in (jail/src/vmm/options.rs). */
import path from 'node:path'
import { FDS, type Machine } from '../args.ts'
import { findKvmGroups, KVM_DEVICE } from '../kvm-access.ts'

export const JAIL_BINARY = path.resolve(import.meta.dirname, '../../../../jail/target/warren/jail')

/** The folder of QEMU's sockets, as QEMU names it. */
export const SOCKETS_IN_JAIL = '/sockets'
export const WORK_IN_JAIL = '/work'

/** A disk may grow while QEMU runs, and an operator may allow larger ones than the plans do. */
const FILE_MIN_LIMIT_MIB = 256 * 1024
const FILE_LIMIT_PER_DISK = 4
/** Disk layers, block jobs and sockets. A compacted chain has far fewer layers. */
const OPEN_FILES_MAX = 1_024
/** Threads count. QEMU has one per vCPU and up to 64 for disk I/O. */
export const THREADS_MAX = 160

/**
 * When the machine runs out of memory, the kernel kills VMMs before PostgreSQL and Warren itself, whose score is 0. Those
 * that only save time, in the pool and on standby, come first.
 */
export const OOM_SCORE = 500
export const OOM_SCORE_SPARE = 1_000

export type JailOptions = {
  /** See root.ts. */
  root: string
  accel: Machine['accel']
  uid: number
  diskMib: number
  socketFolder: string
  workFolder: string
  cgroupProcs: readonly string[]
  diesWithHostAgent: boolean
  reportFd: number
}

/** What precedes the program and its arguments. */
export function renderJailArgs(options: JailOptions): string[] {
  const { uid } = options
  return [
    ...['--root', options.root, '--uid', `${uid}`, '--gid', `${uid}`],
    ...['--write', options.socketFolder, SOCKETS_IN_JAIL],
    ...['--write', options.workFolder, WORK_IN_JAIL, '--folder', WORK_IN_JAIL, `${FDS.work}`],
    ...(options.accel === 'kvm' ? kvm() : []),
    ...['--limit', 'fsize', `${fileMaxBytes(options.diskMib)}`, '--limit', 'nofile', `${OPEN_FILES_MAX}`],
    ...['--limit', 'nproc', `${THREADS_MAX}`],
    '--filter',
    ...(options.diesWithHostAgent ? ['--dies-with-parent'] : []),
    ...['--oom-score', `${OOM_SCORE}`],
    ...options.cgroupProcs.flatMap((file) => ['--cgroup', file]),
    ...['--report', `${options.reportFd}`, '--'],
  ]
}

const fileMaxBytes = (diskMib: number): number =>
  Math.max(FILE_LIMIT_PER_DISK * diskMib, FILE_MIN_LIMIT_MIB) * 1024 * 1024

function kvm(): string[] {
  const groups = findKvmGroups() ?? [] // The probe has made sure that QEMU can open it.
  return ['--device', KVM_DEVICE, KVM_DEVICE, ...(groups.length > 0 ? ['--groups', groups.join()] : [])]
}
