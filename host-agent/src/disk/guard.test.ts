import assert from 'node:assert/strict'
import { test } from 'node:test'
import { diskLevels } from '@warren/kit/disk-space'
import { until } from '@warren/kit/testing/until'
import { createDiskGuard, type GuardedVmm } from './guard.ts'
import type { Volume } from './volume.ts'

const MIB = 1024 * 1024
const SILENT = { warn() {}, info() {}, error() {} }

/** 5 GiB: the floor is 256 MiB, guests that write are stopped below 128 MiB, all below 102 MiB. */
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
  counts = 0
  /** While it is set, QEMU does not answer. */
  silence: PromiseWithResolvers<never> | undefined
  async countWrites() {
    this.counts++
    await this.silence?.promise
    return this.writes
  }
  async holdForDisk() {
    if (this.isPaused) return false
    this.waitsForDisk = true
    return true
  }
  async releaseFromDisk() {
    await this.silence?.promise
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

test('below the last level a QEMU that does not answer is stopped at once', async () => {
  const { disk, guard } = setUp()
  const silent = new Guest()
  silent.silence = Promise.withResolvers()
  guard.add(silent)
  disk.freeMib = 120
  const first = guard.look()
  assert.equal(silent.counts, 1)

  disk.freeMib = 20
  await guard.look()

  assert.equal(silent.waitsForDisk, true)
  silent.silence.reject(new Error('no answer'))
  await first
})

test('a count that fails is taken for a write', async () => {
  const { disk, guard } = setUp()
  const silent = new Guest()
  silent.silence = Promise.withResolvers()
  silent.silence.reject(new Error('no answer'))
  guard.add(silent)

  disk.freeMib = 150
  await guard.look()
  assert.equal(silent.waitsForDisk, false)
  disk.freeMib = 120
  await guard.look()

  assert.equal(silent.waitsForDisk, true)
})

test('the guard does not wait for one QEMU before it stops the others', async () => {
  const { disk, guard } = setUp()
  const [silent, writer] = [new Guest(), new Guest()]
  silent.silence = Promise.withResolvers()
  for (const guest of [silent, writer]) guard.add(guest)
  const stopping = new AbortController()
  disk.freeMib = 150
  const running = guard.run(stopping.signal)
  await until(() => writer.counts > 0, 'writes are counted')

  disk.freeMib = 120
  writer.writes++
  await until(() => writer.waitsForDisk, 'the writer is stopped')

  assert.equal(silent.counts, 1)
  stopping.abort()
  await running
  silent.silence.reject(new Error('no answer'))
})

test('guests continue without waiting for one whose QEMU does not answer, which is tried again', async () => {
  const { disk, guard } = setUp()
  const [silent, other] = [new Guest(), new Guest()]
  for (const guest of [silent, other]) guard.add(guest)
  disk.freeMib = 20
  await guard.look()
  silent.silence = Promise.withResolvers()
  disk.freeMib = 300

  const first = guard.look()
  await until(() => !other.waitsForDisk, 'the other continues')
  assert.deepEqual([silent.waitsForDisk, guard.waiting()], [true, 1])
  silent.silence.reject(new Error('no answer'))
  await first
  assert.equal(silent.waitsForDisk, true)
  silent.silence = undefined
  await guard.look()

  assert.equal(silent.waitsForDisk, false)
})

test('writes are not counted at every look unless free space falls', async () => {
  const { disk, guard } = setUp()
  const guest = new Guest()
  guard.add(guest)
  disk.freeMib = 120
  const startedAt = performance.now()
  for (let i = 0; i < 100; i++) await guard.look()
  assert.ok(guest.counts <= 2 + (performance.now() - startedAt) / 1_000, `${guest.counts} counts`)

  const before = guest.counts
  for (let i = 0; i < 5; i++) {
    disk.freeMib -= 3
    await guard.look()
  }

  assert.ok(guest.counts >= before + 5)
})
