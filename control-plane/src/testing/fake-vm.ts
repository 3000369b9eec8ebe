/** One VM of a fake host, what a test may hook into, and how a guest ends. */
import type {
  HostFailureCode,
  HostVm,
  HostVmCreateBody,
  HostVmForkBody,
  HostVmNetworkBody,
  HostVmResumeBody,
} from '@warren/protocol'
import type { FakeGuest } from './fake-guest.ts'
import type { FakeNetwork } from './fake-network.ts'

export class FakeHostFailure extends Error {
  readonly code: HostFailureCode
  constructor(code: HostFailureCode, message = 'told to fail') {
    super(message)
    this.code = code
  }
}

export type FakeVm = Omit<HostVm, 'generation'> & {
  body: HostVmCreateBody
  guest: FakeGuest
  network: FakeNetwork
  /** What was saved and is whole, oldest first. */
  generations: number[]
  damaged: Set<number>
  /** Operations by kind and fence: the same answer for who asks again. */
  done: Map<string, Promise<unknown>>
  /** One at a time; others are refused meanwhile. */
  doing?: string
}

type Awaitable = Promise<void> | void
export type VmHooks = {
  beforeCreate?: (body: HostVmCreateBody) => Awaitable
  /** The VM runs; the answer has not left. */
  afterCreate?: (body: HostVmCreateBody) => Awaitable
  beforePause?: (id: string) => Awaitable
  /** It is saved; the answer has not left. */
  afterPause?: (id: string) => Awaitable
  beforeResume?: (id: string, body: HostVmResumeBody) => Awaitable
  afterResume?: (id: string, body: HostVmResumeBody) => Awaitable
  beforeFork?: (id: string, body: HostVmForkBody) => Awaitable
  /** The children are there; the answer has not left. */
  afterFork?: (id: string, body: HostVmForkBody) => Awaitable
  beforeDelete?: (id: string) => Awaitable
  beforeNetwork?: (id: string, body: HostVmNetworkBody) => Awaitable
  /** The VM is gone; the answer has not left. */
  afterDelete?: (id: string) => Awaitable
}

export function endCommands(vm: FakeVm): void {
  for (const child of vm.guest.commands) child.kill('SIGKILL')
}

/** Processes outlive a pause; nothing outlives the machine. */
export function endGuest(vm: FakeVm): void {
  endCommands(vm)
  for (const { child } of vm.guest.processes.values()) child.kill('SIGKILL')
}
