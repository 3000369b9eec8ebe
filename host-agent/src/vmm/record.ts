/**
 * What is written down about one VMM, as part of its sandbox's record (vms/record.ts): enough to find the process
 * again, to release what it holds, and to save or recover its disk.
 *
 * Three fields change while the VMM exists: `disk` (disk/live.ts), `resources` (release.ts) and, when the guest reports it,
 * the version in `agent` (apply-identity.ts). The sandbox's record and the `Vmm` share one object, so both always see the
 * current values.
 */
import { GuestAgentInfo } from '@warren/protocol'
import { type Static, Type } from 'typebox'
import { DiskChain } from './disk/chain.ts'

const Count = Type.Integer({ minimum: 0 })

export const VmmRecord = Type.Object({
  id: Type.String({ pattern: '^[\\w-]{1,80}$' }),
  slot: Count,
  uid: Count,
  qemu: Type.Object({
    pid: Type.Integer({ minimum: 1 }),
    started: Type.String({ description: 'Start time in ticks since boot: a pid alone may be reused.' }),
  }),
  base: Type.String({ description: 'Key of the base below its memory and disk.' }),
  baseId: Type.String({ description: 'Which build of that base.' }),
  memoryOver: Type.Enum(['base', 'zeros'], { description: 'What a page holds that the guest never wrote.' }),
  shape: Type.Object({ vcpu: Count, mem_mib: Count }),
  machineType: Type.String({ description: 'Versioned QEMU machine type it was first booted as.' }),
  hardware: Type.Optional(
    Type.Integer({ minimum: 1, description: 'See hardware.ts; absent in records of earlier versions.' }),
  ),
  agent: Type.Optional(GuestAgentInfo), // Absent if it was started by a version that did not record it.
  disk: DiskChain,
  resources: Type.Enum(['held', 'slot-released', 'released'], {
    description: 'Of process, slot, cgroup and sockets. The disk stays until the VMM is stopped for good.',
  }),
})
export type VmmRecord = Static<typeof VmmRecord>
