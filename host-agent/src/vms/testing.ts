/** Records for tests. */
import type { VmmRecord } from '../vmm/record.ts'
import type { DeadVm, PausedVm, RunningVm, VmRecord, VmState } from './record.ts'

export const SANDBOX = `sb-${'0'.repeat(26)}`

export const VMM: VmmRecord = {
  id: '0123456789abcdef',
  slot: 3,
  uid: 1_610_612_739,
  qemu: { pid: 4711, started: '123456' },
  base: 'b'.repeat(32),
  baseId: '6f1e4f0e-2f1e-4c39-a1a0-000000000000',
  memoryOver: 'base',
  shape: { vcpu: 1, mem_mib: 256 },
  machineType: 'pc-q35-7.2',
  disk: { layers: ['merged-1'], generation: 2, firstUnsaved: 0, active: 0, standbyFreezes: 0 },
  resources: 'held',
}

const stored = { id: SANDBOX, fence: 4, ip: '10.0.0.7', diskMib: 10_240, counts: null, flows: [], lastOperation: null }

export const RUNNING: RunningVm = { state: 'running', ...stored, generation: 2, vmm: VMM, signal: null }
export const PAUSED: PausedVm = { state: 'paused', ...stored, generation: 2, identityPending: false }
export const DEAD: DeadVm = { ...RUNNING, state: 'dead', reason: 'its QEMU process exited' }

export const EXAMPLES: { [S in VmState]: Extract<VmRecord, { state: S }> } = {
  creating: { state: 'creating', id: SANDBOX, fence: 4 },
  running: RUNNING,
  pausing: { ...RUNNING, state: 'pausing' },
  paused: PAUSED,
  resuming: { state: 'resuming', id: SANDBOX, fence: 4, from: PAUSED },
  dead: DEAD,
}
