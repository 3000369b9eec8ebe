/**
 * Decides how to repair a sandbox whose row and VM disagree. Rows are statuses, columns what the host reports; `-` means
 * that nothing is wrong, or that the operation's job will handle it.
 *
 *              running       paused             dead               absent
 *   running    -             lose → error       lose → error       loseAll → failed
 *   pausing    -             -                  lose → error       loseAll → failed
 *   paused     park          -                  -                  loseAll → failed
 *   error      park          -                  -                  loseAll → failed
 *
 *   lose      The snapshot or the disk still exists; a resume starts from it.
 *   loseAll   There is nothing to start from.
 *   park      The VM runs although its sandbox does not: the host completed a resume that the control plane had given
 *             up. The VM is paused again, so that none of its work is lost. Until then its memory is counted.
 *
 * Sandboxes that are creating, resuming, forking or destroying have an owner or a job that asks the host. A VM that the
 * host reports as creating, pausing or resuming is left to finish. `dead` and `absent` are final until the sandbox is
 * resumed or deleted, so the repair need not wait.
 */
import { type HostVm, sandboxCan } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'

export type Repair = { move: 'lose' | 'loseAll' | 'park'; reason: string }

const REASON_MAX_CHARACTERS = 500

export function decideRepair(status: SandboxRow['status'], vm: HostVm | undefined): Repair | undefined {
  if (!vm && sandboxCan('loseAll', status)) return { move: 'loseAll', reason: 'the host lost the VM' }
  if (vm?.state === 'dead' && sandboxCan('lose', status)) {
    return { move: 'lose', reason: `the VM ended: ${(vm.reason ?? 'unknown cause').slice(0, REASON_MAX_CHARACTERS)}` }
  }
  if (vm?.state === 'paused' && status === 'running') {
    return { move: 'lose', reason: 'the host paused the VM; resume continues from there' }
  }
  if (vm?.state === 'running' && sandboxCan('park', status)) {
    return { move: 'park', reason: `the VM was running on its host while the sandbox was ${status}; pausing it again` }
  }
  return undefined
}
