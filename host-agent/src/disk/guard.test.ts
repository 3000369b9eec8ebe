import assert from 'node:assert/strict'
import { test } from 'node:test'
import { diskLevels } from '@warren/kit/disk-space'
import { createDiskGuard, type GuardedVmm } from './guard.ts'
import type { Volume } from './volume.ts'

const MIB = 1024 * 1024
const SILENT = { warn() {}, info() {}, error() {} }

/** 5 GiB: the floor is 256 MiB, guests that write are stopped below 128 MiB, all below 51 MiB. */
function setUp() {
  const disk = { freeMib: 5_000 }
  const levels = diskLevels({ totalBytes: 5 * 1024 * MIB }, 0)
  const volume = {
    levels,
    read: () => ({ totalBytes: 5 * 1024 * MIB, freeBytes: disk.freeMib * MIB }),
  } as Volume
  return { disk, guard: createDiskGuard(volume, SILENT) }
}

class Guest implements GuardedVmm {
  record = { id: 'vmm' }
  waitsForDisk = false
  writes = 0
  isPaused = false
  readonly exit = Promise.withResolvers<void>()
  qmp = { closed: this.exit.promise }
  async countWrites() {
    return this.writes
  }
  async holdForDisk() {
    if (this.isPaused) return false
    this.waitsForDisk = true
    return true
  }
  async releaseFromDisk() {
    this.waitsForDisk = false
  }
}

test('below the stop level, guests that write are stopped, and the others are not', async () => {
  const { disk, guard } = setUp()
  const [writer, reader] = [new Guest(), new Guest()]
  for (const guest of [writer, reader]) guard.add(guest)
  disk.freeMib = 150
  await guard.look()

  disk.freeMib = 120
  writer.writes++
  await guard.look()

  assert.deepEqual([writer.waitsForDisk, reader.waitsForDisk, guard.waiting()], [true, false, 1])
})

test('between the stop level and the floor, guests may write', async () => {
  const { disk, guard } = setUp()
  const writer = new Guest()
  guard.add(writer)
  disk.freeMib = 150
  for (let i = 0; i < 3; i++) {
    writer.writes++
    await guard.look()
  }

  assert.equal(writer.waitsForDisk, false)
})

test('below the last level all guests are stopped', async () => {
  const { disk, guard } = setUp()
  const reader = new Guest()
  guard.add(reader)
  disk.freeMib = 20
  await guard.look()

  assert.equal(reader.waitsForDisk, true)
})

test('guests continue when the floor is free again, not before', async () => {
  const { disk, guard } = setUp()
  const writer = new Guest()
  guard.add(writer)
  disk.freeMib = 20
  await guard.look()
  disk.freeMib = 200
  await guard.look()
  assert.equal(writer.waitsForDisk, true)

  disk.freeMib = 300
  await guard.look()

  assert.equal(writer.waitsForDisk, false)
})

test('a guest that is being paused is left alone, and one that exited is forgotten', async () => {
  const { disk, guard } = setUp()
  const [pausing, exited] = [new Guest(), new Guest()]
  pausing.isPaused = true
  for (const guest of [pausing, exited]) guard.add(guest)
  exited.exit.resolve()
  await exited.qmp.closed
  disk.freeMib = 20

  await guard.look()

  assert.deepEqual([pausing.waitsForDisk, exited.waitsForDisk], [false, false])
})
