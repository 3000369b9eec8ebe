/** The sampler with a kernel, a network and guests that are values of the test. Time is a value too. */
import assert from 'node:assert/strict'
import { type TestContext, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { makeFolder } from '../images/testing.ts'
import { Rings } from './rings.ts'
import { type GuestReading, type SampledVm, Sampler } from './sampler.ts'

const MIB = 1024 * 1024
const ID = `sb-${'0'.repeat(26)}`
const OTHER = `sb-${'1'.repeat(26)}`
const START_MS = 1_780_000_000_000

type FakeVm = SampledVm & {
  cores: number
  residentBytes: number
  sentPerSec: number
  receivedPerSec: number
  guest: () => Promise<GuestReading>
  asked: number
}

async function createWorld(t: TestContext) {
  const folder = await makeFolder(t)
  const vms = new Map<string, FakeVm>()
  let elapsedMs = 0
  let setBackMs = 0
  const usedCpu = new Map<string, number>()
  const counts = new Map<number, { sentBytes: number; receivedBytes: number }>()
  const warnings: object[] = []

  const create = () =>
    new Sampler<FakeVm>({
      listVms: () => [...vms.values()],
      findVm: (id) => vms.get(id),
      readCpuNs: ({ vmmId }) => usedCpu.get(vmmId) ?? 0,
      findResidentBytes: ({ residentBytes }) => (residentBytes === 0 ? undefined : residentBytes),
      readNetwork: async (slots) =>
        new Map(
          slots.map((slot) => [slot, { atMs: elapsedMs, ...(counts.get(slot) ?? { sentBytes: 0, receivedBytes: 0 }) }]),
        ),
      askGuest(vm) {
        vm.asked++
        return vm.guest()
      },
      rings: new Rings(folder),
      log: { warn: (details: object) => void warnings.push(details), debug: () => {} } as never, // Only these two are used.
      now: () => START_MS + elapsedMs - setBackMs,
      monotonicMs: () => elapsedMs,
    })
  const world = {
    sampler: create(),
    vms,
    warnings,
    restart: () => {
      world.sampler = create()
    },
    setClockBack: (ms: number) => {
      setBackMs += ms
    },
    add(id = ID, more: Partial<FakeVm> = {}): FakeVm {
      const vm: FakeVm = {
        ...{ id, vmmId: `vmm of ${id}`, slot: vms.size, memMib: 256, diskMib: 1024, cores: 0, residentBytes: 90 * MIB },
        ...{ sentPerSec: 0, receivedPerSec: 0, asked: 0 },
        guest: async () => ({ memoryUsedBytes: 50 * MIB, storageUsedBytes: 300 * MIB }),
        ...more,
      }
      vms.set(id, vm)
      return vm
    },
    pass(ms: number): void {
      elapsedMs += ms
      for (const vm of vms.values()) {
        usedCpu.set(vm.vmmId, (usedCpu.get(vm.vmmId) ?? 0) + vm.cores * ms * 1e6)
        const { sentBytes, receivedBytes } = counts.get(vm.slot) ?? { sentBytes: 0, receivedBytes: 0 }
        counts.set(vm.slot, {
          sentBytes: sentBytes + (vm.sentPerSec * ms) / 1000,
          receivedBytes: receivedBytes + (vm.receivedPerSec * ms) / 1000,
        })
      }
    },
    async steps(count: number): Promise<void> {
      for (let i = 0; i < count; i++) {
        world.pass(10_000)
        await world.sampler.sample()
      }
    },
    series: (id = ID) => world.sampler.getSeries(id).points,
  }
  return world
}

test('a sample has what the kernel, the network and the guest said', async (t) => {
  const { add, steps, series } = await createWorld(t)
  add(ID, { cores: 0.75, sentPerSec: 1_000, receivedPerSec: 30 })

  await steps(3)

  const points = series()
  assert.deepEqual(
    points.map(({ ts }) => Date.parse(ts) - START_MS),
    [20_000, 30_000],
  )
  const { ts: _, ...point } = points[0]!
  assert.deepEqual(point, {
    cpu_cores_used: 0.75,
    memory_bytes: 90 * MIB,
    memory_used_guest_bytes: 50 * MIB,
    memory_limit_bytes: 256 * MIB,
    net_bytes_in_per_sec: 30,
    net_bytes_out_per_sec: 1_000,
    storage_bytes: 300 * MIB,
    storage_limit_bytes: 1024 * MIB,
  })
})

test('an idle guest is asked once, and again at every second tick while a client asks for its metrics', async (t) => {
  const { add, steps, sampler, series } = await createWorld(t)
  const vm = add(ID, { cores: 0.02 })

  await steps(90)
  assert.equal(vm.asked, 1)
  assert.equal(series().at(-1)!.memory_used_guest_bytes, 50 * MIB)
  vm.guest = async () => ({ memoryUsedBytes: 60 * MIB, storageUsedBytes: 300 * MIB })
  await steps(59)
  assert.equal(vm.asked, 1 + 30)
  assert.equal(series().at(-1)!.memory_used_guest_bytes, 60 * MIB)

  await steps(200)
  assert.equal(vm.asked, 1 + 30 + 29)
  sampler.measure(vm)
  await steps(1)
  assert.equal(vm.asked, 1 + 30 + 29 + 1)
})

test('a busy guest is asked at every tick', async (t) => {
  const { add, steps } = await createWorld(t)
  const vm = add(ID, { cores: 0.5 })

  await steps(20)

  assert.equal(vm.asked, 20)
})

test('a guest that hangs has zeros, and delays no other sandbox', async (t) => {
  const world = await createWorld(t)
  const idle = `sb-${'2'.repeat(26)}`
  const vm = world.add(ID, { cores: 1 })
  world.add(OTHER, { cores: 1 })
  world.add(idle)
  await world.steps(1)
  const hung = Promise.withResolvers<GuestReading>()
  vm.guest = () => hung.promise

  const sampling = world.steps(1)
  await until(() => world.series(OTHER).length === 1 && world.series(idle).length === 1)
  assert.deepEqual(world.series(), [])
  hung.reject(new Error('no answer in time'))
  await sampling

  const { cpu_cores_used, memory_bytes, memory_used_guest_bytes, storage_bytes } = world.series()[0]!
  assert.deepEqual([cpu_cores_used, memory_bytes, memory_used_guest_bytes, storage_bytes], [1, 90 * MIB, 0, 0])
})

test('what a guest says is limited to the size of its VM', async (t) => {
  const { add, steps, series } = await createWorld(t)
  add(ID, { cores: 1, guest: async () => ({ memoryUsedBytes: 1e300, storageUsedBytes: -1 }) })

  await steps(2)

  const { memory_used_guest_bytes, storage_bytes } = series()[0]!
  assert.deepEqual([memory_used_guest_bytes, storage_bytes], [256 * MIB, 0])
})

test('the current metrics are an average of 15 to 30 seconds, and since the start for a new sandbox', async (t) => {
  const world = await createWorld(t)
  const vm = world.add(ID, { cores: 1 })
  assert.deepEqual(world.sampler.measure(vm).cpu_cores_used, 0)
  world.pass(2_000)
  assert.equal(world.sampler.measure(vm).cpu_cores_used, 1)
  await world.steps(6)

  vm.cores = 0
  world.pass(6_000)
  const { at, cpu_cores_used, memory_bytes } = world.sampler.measure(vm)

  // Of 16 s: 10 s with one core and 6 s with none.
  assert.equal(cpu_cores_used, 0.625)
  assert.deepEqual([Date.parse(at) - START_MS, memory_bytes], [68_000, 90 * MIB])
})

test('after a restart of the host agent the series continues, and the CPU is that of the last samples', async (t) => {
  const world = await createWorld(t)
  const vm = world.add(ID, { cores: 0.5 })
  await world.steps(5)
  world.restart()
  world.pass(3_000)

  assert.equal(world.sampler.measure(vm).cpu_cores_used, 0.5)
  world.pass(7_000)
  await world.sampler.sample()
  await world.steps(2)

  assert.deepEqual(
    world.series().map(({ ts, cpu_cores_used }) => [(Date.parse(ts) - START_MS) / 1000, cpu_cores_used]),
    [20, 30, 40, 50, 60, 70, 80].map((seconds) => [seconds, 0.5]),
  )
})

test('a paused sandbox has a gap, and its next VMM is not compared with the one before', async (t) => {
  const world = await createWorld(t)
  const vm = world.add(ID, { cores: 0.5 })
  await world.steps(3)
  world.vms.delete(ID)
  await world.steps(10)
  world.vms.set(ID, { ...vm, vmmId: 'another', residentBytes: 20 * MIB })
  await world.steps(3)

  assert.deepEqual(
    world.series().map(({ ts, cpu_cores_used }) => [(Date.parse(ts) - START_MS) / 1000, cpu_cores_used]),
    [20, 30, 150, 160].map((seconds) => [seconds, 0.5]),
  )
})

test('a VMM that has just exited is left out', async (t) => {
  const world = await createWorld(t)
  const vm = world.add(ID, { cores: 0.5 })
  await world.steps(2)
  vm.residentBytes = 0
  await world.steps(2)

  assert.equal(world.series().length, 1)
  assert.deepEqual([world.sampler.measure(vm).cpu_cores_used, world.sampler.measure(vm).memory_bytes], [0, 0])
})

test('a sandbox that is deleted while its guest is asked is not written again', async (t) => {
  const world = await createWorld(t)
  const vm = world.add(ID, { cores: 1 })
  await world.steps(1)
  vm.guest = async () => {
    world.vms.delete(ID)
    return { memoryUsedBytes: 1, storageUsedBytes: 1 }
  }

  await world.steps(1)

  assert.deepEqual(world.series(), [])
})

test('a clock that is set back or forward leaves rates unchanged and times in order', async (t) => {
  const world = await createWorld(t)
  world.add(ID, { cores: 0.5, sentPerSec: 100 })
  await world.steps(20)
  world.setClockBack(60_000)
  await world.steps(2)
  world.setClockBack(-300_000)
  await world.steps(2)

  const points = world.series()
  const seconds = points.map(({ ts }) => (Date.parse(ts) - START_MS) / 1000)
  assert.deepEqual(seconds.slice(-6), [130, 140, 150, 160, 470, 480])
  for (const { cpu_cores_used, net_bytes_out_per_sec } of points) {
    assert.deepEqual([cpu_cores_used, net_bytes_out_per_sec], [0.5, 100])
  }
})
