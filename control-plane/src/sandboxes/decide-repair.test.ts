import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type HostVm, SANDBOX_STATUSES } from '@warren/protocol'
import { decideRepair } from './decide-repair.ts'

const VM_STATES = ['creating', 'running', 'pausing', 'paused', 'resuming', 'dead', 'absent'] as const
const vmInState = (state: (typeof VM_STATES)[number]): HostVm | undefined =>
  state === 'absent' ? undefined : { id: 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', fence: 1, state }

test('exactly these combinations of status and VM state are repaired', () => {
  const repairs = SANDBOX_STATUSES.flatMap((status) =>
    VM_STATES.flatMap((state) => {
      const repair = decideRepair(status, vmInState(state))
      return repair ? [`${status}, ${state}: ${repair.move}`] : []
    }),
  )

  assert.deepEqual(repairs, [
    'running, paused: vmLost',
    'running, dead: vmLost',
    'running, absent: dataLost',
    'pausing, dead: vmLost',
    'pausing, absent: dataLost',
    'paused, running: pauseAgain',
    'paused, absent: dataLost',
    'error, running: pauseAgain',
    'error, absent: dataLost',
  ])
})
