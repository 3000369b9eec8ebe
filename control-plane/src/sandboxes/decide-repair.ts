/**
 * What a sandbox and its VM should become when they do not agree. The rows are statuses, the columns what its host
 * says; `-` is as it should be, or the business of the job that works on it.
 *
 *              running       paused             dead               not there
 *   running    -             lose → error       lose → error       loseAll → failed
 *   pausing    -             -                  lose → error       loseAll → failed
 *   paused     park          -                  -                  loseAll → failed
 *   error      park          -                  -                  loseAll → failed
 *
 * Creating, resuming, forking and destroying have an owner or a job that asks the host itself. A VM that the host is
 * creating, pausing or resuming is waited for. Being dead or not there is final until somebody resumes or deletes, so
 * it may be acted on at once.
 *
 *   lose      what was saved, or the disk, is still there; resume takes it up
 *   loseAll   nothing is left to start from
 *   park      it runs although nobody has it: a resume that we gave up came to its end. It is paused again, so that
 *             nothing it did is lost; meanwhile its memory counts
 */
import { type HostVm, sandboxCan } from '@warren/protocol'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'

export type Placed = Pick<SandboxRow, 'id' | 'fence' | 'status' | 'host_id'>
export type Repair = { move: 'lose' | 'loseAll' | 'park'; reason: string }

export function decideRepair(status: SandboxRow['status'], vm: HostVm | undefined): Repair | undefined {
  if (!vm && sandboxCan('loseAll', status)) return { move: 'loseAll', reason: 'the host lost the VM' }
  if (vm?.state === 'dead' && sandboxCan('lose', status)) {
    return { move: 'lose', reason: `the VM ended: ${(vm.reason ?? 'nobody knows why').slice(0, 500)}` }
  }
  if (vm?.state === 'paused' && status === 'running') {
    return { move: 'lose', reason: 'the host had paused the VM; resume goes on from there' }
  }
  if (vm?.state === 'running' && sandboxCan('park', status)) {
    return { move: 'park', reason: `it ran on its host although it was ${status}, and was paused again` }
  }
  return undefined
}

/** As its host says now; throws when the host says nothing. */
export async function findVm(deps: Deps, row: Placed): Promise<HostVm | undefined> {
  const host = await deps.hosts.get(row.host_id)
  const { vms } = await host.getState()
  return vms.find((vm) => vm.id === row.id)
}
