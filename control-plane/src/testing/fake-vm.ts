/** One VM of a fake host, the hooks for tests, and how a guest is stopped. */
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
  constructor(code: HostFailureCode, message = 'failure requested by the test') {
    super(message)
    this.code = code
  }
}

export type FakeVm = Omit<HostVm, 'generation'> & {
  body: HostVmCreateBody
  guest: FakeGuest
  network: FakeNetwork
  /** Saved generations, oldest first. */
  generations: number[]
  damaged: Set<number>
  /** Operations by kind and fence: a repeated request gets the same response. */
  done: Map<string, Promise<unknown>>
  /** The current operation; others are rejected meanwhile. */
  doing?: string
}

type Awaitable = Promise<void> | void
export type VmHooks = {
  beforeCreate?: (body: HostVmCreateBody) => Awaitable
  /** The VM is running; the response has not been sent. */
  afterCreate?: (body: HostVmCreateBody) => Awaitable
  beforePause?: (id: string) => Awaitable
  /** It is saved; the response has not been sent. */
  afterPause?: (id: string) => Awaitable
  beforeResume?: (id: string, body: HostVmResumeBody) => Awaitable
  afterResume?: (id: string, body: HostVmResumeBody) => Awaitable
  beforeFork?: (id: string, body: HostVmForkBody) => Awaitable
  /** The children exist; the response has not been sent. */
  afterFork?: (id: string, body: HostVmForkBody) => Awaitable
  beforeDelete?: (id: string) => Awaitable
  beforeNetwork?: (id: string, body: HostVmNetworkBody) => Awaitable
  /** The VM is deleted; the response has not been sent. */
  afterDelete?: (id: string) => Awaitable
}

export function endCommands(vm: FakeVm): void {
  for (const child of vm.guest.commands) child.kill('SIGKILL')
}

/** Processes survive a pause; nothing survives the VM. */
export function endGuest(vm: FakeVm): void {
  endCommands(vm)
  for (const { child } of vm.guest.processes.values()) child.kill('SIGKILL')
}
