import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type HostVm, SANDBOX_STATUSES } from '@warren/protocol'
import { decideRepair } from './decide-repair.ts'

const VM_STATES = ['creating', 'running', 'pausing', 'paused', 'resuming', 'dead', 'not there'] as const
const vmThatIs = (state: (typeof VM_STATES)[number]): HostVm | undefined =>
  state === 'not there' ? undefined : { id: 'sb-01ARZ3NDEKTSV4RRFFQ69G5FAV', fence: 1, state }

test('a row and a VM that do not agree are judged by this table, and all others are left alone', () => {
  const verdicts = SANDBOX_STATUSES.flatMap((status) =>
    VM_STATES.flatMap((state) => {
      const verdict = decideRepair(status, vmThatIs(state))
      return verdict ? [`${status}, ${state}: ${verdict.move}`] : []
    }),
  )

  assert.deepEqual(verdicts, [
    'running, paused: lose',
    'running, dead: lose',
    'running, not there: loseAll',
    'pausing, dead: lose',
    'pausing, not there: loseAll',
    'paused, running: park',
    'paused, not there: loseAll',
    'error, running: park',
    'error, not there: loseAll',
  ])
})
