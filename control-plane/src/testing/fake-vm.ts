/** A VM of the fake host and the hooks of a test. */
import type { ChildProcess } from 'node:child_process'
import type {
  HostFailureCode,
  HostVm,
  HostVmCreateBody,
  HostVmForkBody,
  HostVmMountsBody,
  HostVmNetworkBody,
  HostVmResizeBody,
  HostVmResumeBody,
} from '@warren/protocol'
import type { FakeGuest } from './fake-guest.ts'
import type { FakeMetrics } from './fake-metrics.ts'
import type { FakeMounts, MountHooks } from './fake-mounts.ts'
import type { FakeNetwork } from './fake-network.ts'

export class FakeHostFailure extends Error {
  readonly code: HostFailureCode
  constructor(code: HostFailureCode, message = 'failure requested by the test') {
    super(message)
    this.code = code
  }
}

export type FakeVm = Omit<HostVm, 'generation'> & {
  body: HostVmCreateBody
  guest: FakeGuest
  network: FakeNetwork
  mounts: FakeMounts
  metrics: FakeMetrics
  /** False for a fork that was never resumed: it has counted nothing. */
  hasRun: boolean
  /** Saved and complete generations, oldest first. */
  generations: number[]
  damaged: Set<number>
  /** The guest has not grown its file system yet, because the host agent died during a resize. */
  growPending?: boolean
  waitsForDisk?: boolean
  /** Results of operations by kind and fence; a repeated request gets the same one. */
  done: Map<string, Promise<unknown>>
  /** The operation in progress; others are refused meanwhile. */
  operation?: string
}

type Awaitable = Promise<void> | void
export type VmHooks = MountHooks & {
  beforeCreate?: (body: HostVmCreateBody) => Awaitable
  /** The VM runs; the response is not sent yet. */
  afterCreate?: (body: HostVmCreateBody) => Awaitable
  beforePause?: (id: string) => Awaitable
  /** The VM is saved; the response is not sent yet. */
  afterPause?: (id: string) => Awaitable
  beforeResume?: (id: string, body: HostVmResumeBody) => Awaitable
  afterResume?: (id: string, body: HostVmResumeBody) => Awaitable
  beforeFork?: (id: string, body: HostVmForkBody) => Awaitable
  /** The children exist; the response is not sent yet. */
  afterFork?: (id: string, body: HostVmForkBody) => Awaitable
  beforeResize?: (id: string, body: HostVmResizeBody) => Awaitable
  /** The disk has grown; the response is not sent yet. */
  afterResize?: (id: string, body: HostVmResizeBody) => Awaitable
  beforeDelete?: (id: string) => Awaitable
  beforeMounts?: (id: string, body: HostVmMountsBody) => Awaitable
  /** The mounts are set; the response is not sent yet. */
  afterMounts?: (id: string, body: HostVmMountsBody) => Awaitable
  beforeNetwork?: (id: string, body: HostVmNetworkBody) => Awaitable
  /** The VM is deleted; the response is not sent yet. */
  afterDelete?: (id: string) => Awaitable
}

export function endCommands(vm: FakeVm): void {
  for (const child of vm.guest.commands) child.kill('SIGKILL')
}

/** Unlike a pause, which leaves managed processes running. */
export function endGuest(vm: FakeVm): void {
  endCommands(vm)
  for (const { child } of vm.guest.processes.values()) killGroup(child)
}

/** A program may have started others, which end with the machine too. */
function killGroup({ pid }: ChildProcess): void {
  try {
    if (pid !== undefined) process.kill(-pid, 'SIGKILL')
  } catch {
    // All of them have already exited.
  }
}
