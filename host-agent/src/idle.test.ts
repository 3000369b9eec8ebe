import assert from 'node:assert/strict'
import { test } from 'node:test'
import { findObstacle, type MachineUse } from './idle.ts'

const IDLE: MachineUse = {
  idleMs: 60_000,
  loadPerCore: 0.1,
  availableMemMib: 12_000,
  totalMemMib: 16_000,
  freeDiskMib: 100_000,
}

test('an idle machine with room has no obstacle', () => {
  assert.equal(findObstacle(IDLE, 4096), undefined)
})

test('requests, load, memory and disk space are obstacles', () => {
  const obstacles = [
    { ...IDLE, idleMs: 2_000 },
    { ...IDLE, loadPerCore: 0.9 },
    { ...IDLE, availableMemMib: 7_000 },
    { ...IDLE, freeDiskMib: 12_000 },
  ].map((use) => findObstacle(use, 4096))

  assert.deepEqual(obstacles, [
    'sandboxes are being created, paused or resumed',
    'the machine is busy',
    'there is too little free memory',
    'there is too little free disk space',
  ])
})

test('a small base may fit where a large one does not', () => {
  const use = { ...IDLE, availableMemMib: 4_000 }

  assert.equal(findObstacle(use, 256), undefined)
  assert.equal(findObstacle(use, 4096), 'there is too little free memory')
})
