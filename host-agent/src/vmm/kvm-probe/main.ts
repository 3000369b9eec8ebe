/**
 * One stage of the KVM probe, in a separate process: `node main.ts A|B` prints one StageReport as JSON.
 *
 * It calls ioctl and mmap by FFI, where a mistake kills the process. So this file is never imported: probe.ts starts it
 * and kills it after a time limit. Descriptors and mappings are released when the process exits.
 */
import { openSync } from 'node:fs'
import { ioctlData, ioctlValue } from '../../ffi/ioctl.ts'
import { mapAnonymous, mapShared } from '../../ffi/memory-mapping.ts'
import { setAlarm } from '../../ffi/process.ts'
import { SystemCallError } from '../../ffi/system-call.ts'
import {
  GUEST_MEMORY_BYTES,
  guestMemory,
  REGS_BYTES,
  SREGS_BYTES,
  STAGES,
  type Stage,
  startRegs,
  startSregs,
} from './guest.ts'
import type { StageReport } from './probe.ts'

const KVM = {
  GET_API_VERSION: 0xae00,
  CREATE_VM: 0xae01,
  GET_VCPU_MMAP_SIZE: 0xae04,
  GET_SUPPORTED_CPUID: 0xc008ae05,
  CREATE_VCPU: 0xae41,
  SET_USER_MEMORY_REGION: 0x4020ae46,
  SET_TSS_ADDR: 0xae47,
  RUN: 0xae80,
  GET_REGS: 0x8090ae81,
  SET_REGS: 0x4090ae82,
  GET_SREGS: 0x8138ae83,
  SET_SREGS: 0x4138ae84,
  SET_CPUID2: 0x4008ae90,
} as const
const API_VERSION = 12
/** KVM on Intel uses three pages there; they must be outside the guest's 2 MiB. */
const TSS_ADDRESS = 0xfffbd000
const CPUID_ENTRIES_MAX = 256
const CPUID_ENTRY_BYTES = 40
const EXIT_IO = 2
const EXIT_INTERNAL_ERROR = 17
/** Longer than the parent's limit: it only matters if the parent died and the guest never leaves KVM_RUN. */
const ALARM_SECONDS = 10

/** A refused system call ends the stage. The report says which one, and why. */
class Refused extends Error {
  readonly report: StageReport
  constructor(call: string, code: string) {
    super(`${call}: ${code}`)
    this.report = { end: 'refused', call, code }
  }
}

setAlarm(ALARM_SECONDS)
const stage = STAGES.find((one) => one === process.argv[2])
if (stage === undefined) throw new Error(`usage: main.ts ${STAGES.join('|')}`)
process.stdout.write(JSON.stringify(report(stage)))

function report(stage: Stage): StageReport {
  try {
    return runStage(stage)
  } catch (error) {
    if (error instanceof Refused) return error.report
    if (error instanceof SystemCallError) return { end: 'refused', call: error.call, code: error.code }
    throw error
  }
}

function runStage(stage: Stage): StageReport {
  const kvm = openKvm()
  const version = ioctl(kvm, 'GET_API_VERSION', 0)
  if (version !== API_VERSION) return { end: 'version', version }

  const vm = ioctl(kvm, 'CREATE_VM', 0)
  ioctl(vm, 'SET_TSS_ADDR', TSS_ADDRESS)
  const memory = mapAnonymous(GUEST_MEMORY_BYTES)
  memory.bytes.set(guestMemory(stage))
  ioctl(vm, 'SET_USER_MEMORY_REGION', memoryRegion(memory.address))

  const vcpu = ioctl(vm, 'CREATE_VCPU', 0)
  const state = mapShared(vcpu, ioctl(kvm, 'GET_VCPU_MMAP_SIZE', 0))
  ioctl(vcpu, 'SET_CPUID2', supportedCpuid(kvm))
  const reset = Buffer.alloc(SREGS_BYTES)
  ioctl(vcpu, 'GET_SREGS', reset)
  ioctl(vcpu, 'SET_SREGS', startSregs(stage, reset))
  ioctl(vcpu, 'SET_REGS', startRegs())

  // CPU time, not wall-clock time: on a loaded machine the vCPU may wait long without being slow.
  const before = process.threadCpuUsage()
  // Runs until the guest exits; an interrupted call is repeated and continues the guest.
  ioctl(vcpu, 'RUN', 0)
  const used = process.threadCpuUsage(before)
  return readExit(state.bytes, vcpu, (used.user + used.system) / 1000)
}

/** struct kvm_run: exit_reason at offset 8, the details of that reason at 32. */
function readExit(state: Buffer, vcpu: number, cpuMs: number): StageReport {
  const exitReason = state.readUInt32LE(8)
  if (exitReason === EXIT_IO) {
    const size = state.readUInt8(33)
    const dataOffset = Number(state.readBigUInt64LE(40))
    return { end: 'io', port: state.readUInt16LE(34), value: state.readUIntLE(dataOffset, size), cpuMs }
  }
  const regs = Buffer.alloc(REGS_BYTES)
  ioctl(vcpu, 'GET_REGS', regs)
  const rip = Number(regs.readBigUInt64LE(REGS_BYTES - 16))
  const suberror = exitReason === EXIT_INTERNAL_ERROR ? { suberror: state.readUInt32LE(32) } : {}
  return { end: 'exit', exitReason, ...suberror, rip }
}

function openKvm(): number {
  try {
    return openSync('/dev/kvm', 'r+')
  } catch (error) {
    throw new Refused('open', (error as NodeJS.ErrnoException).code ?? String(error))
  }
}

function ioctl(fd: number, name: keyof typeof KVM, argument: number | Buffer): number {
  try {
    return typeof argument === 'number' ? ioctlValue(fd, KVM[name], argument) : ioctlData(fd, KVM[name], argument)
  } catch (error) {
    if (error instanceof SystemCallError) throw new Refused(`KVM_${name}`, error.code)
    throw error
  }
}

/** struct kvm_userspace_memory_region: slot, flags, guest address, size, host address. */
function memoryRegion(address: bigint): Buffer {
  const region = Buffer.alloc(32)
  region.writeBigUInt64LE(BigInt(GUEST_MEMORY_BYTES), 16)
  region.writeBigUInt64LE(address, 24)
  return region
}

/** struct kvm_cpuid2: a count, which the kernel updates, and the entries. Without them the guest has no long mode. */
function supportedCpuid(kvm: number): Buffer {
  const cpuid = Buffer.alloc(8 + CPUID_ENTRIES_MAX * CPUID_ENTRY_BYTES)
  cpuid.writeUInt32LE(CPUID_ENTRIES_MAX, 0)
  ioctl(kvm, 'GET_SUPPORTED_CPUID', cpuid)
  return cpuid
}
