/**
 * Decides how to repair a sandbox whose row and VM disagree. Rows are statuses, columns what the host reports; `-` means
 * that nothing is wrong, or that the operation's job will handle it.
 *
 *              running                paused            dead              absent
 *   running    -                      vmLost → error    vmLost → error    dataLost → failed
 *   pausing    -                      -                 vmLost → error    dataLost → failed
 *   paused     pauseAgain → pausing   -                 -                 dataLost → failed
 *   error      pauseAgain → pausing   -                 -                 dataLost → failed
 *
 *   vmLost       The VM no longer runs. Its snapshot or disk still exists, and a resume starts from it.
 *   dataLost     The VM and its data no longer exist, so there is nothing to resume from.
 *   pauseAgain   The VM runs although its sandbox does not: the host completed a resume that the control plane had given
 *                up. The VM is paused again, so that none of its work is lost. Until then its memory is counted.
 *
 * Sandboxes that are creating, resuming, forking or destroying have an owner or a job that asks the host. A VM that the
 * host reports as creating, pausing or resuming is left to finish. `dead` and `absent` are final until the sandbox is
 * resumed or deleted, so the repair need not wait.
 */
import { type HostVm, sandboxCan } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'

export type Repair = { move: 'vmLost' | 'dataLost' | 'pauseAgain'; reason: string }

const REASON_MAX_CHARACTERS = 500

export function decideRepair(status: SandboxRow['status'], vm: HostVm | undefined): Repair | undefined {
  if (!vm && sandboxCan('dataLost', status)) {
    return { move: 'dataLost', reason: 'the VM and its data no longer exist on the host' }
  }
  if (vm?.state === 'dead' && sandboxCan('vmLost', status)) {
    return { move: 'vmLost', reason: `the VM ended: ${(vm.reason ?? 'unknown cause').slice(0, REASON_MAX_CHARACTERS)}` }
  }
  if (vm?.state === 'paused' && status === 'running') {
    return { move: 'vmLost', reason: 'the host paused the VM; resume continues from there' }
  }
  if (vm?.state === 'running' && sandboxCan('pauseAgain', status)) {
    return {
      move: 'pauseAgain',
      reason: `the VM was running on its host while the sandbox was ${status}; pausing it again`,
    }
  }
  return undefined
}
