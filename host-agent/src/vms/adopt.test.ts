/** What a host agent makes of the records it finds. VMs that still run are covered by e2e. */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { setImmediate } from 'node:timers/promises'
import { createActivity } from '../activity.ts'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
import { Rings } from '../metrics/rings.ts'
import { createMetrics } from '../observe/metrics.ts'
import { openSnapshotStore } from '../snapshots/store.ts'
import { makeManifest } from '../snapshots/testing.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { adoptAll } from './adopt.ts'
import { deleteVm } from './delete.ts'
import { Entries } from './entries.ts'
import { findVmmRecord, type StoredVm } from './record.ts'
import { openRegistry } from './registry.ts'
import { DEAD, PAUSED, RUNNING, SANDBOX, VMM } from './testing.ts'
import { Vms } from './vms.ts'
import { watchVm } from './watch.ts'

/** All fake QEMUs run as the user of the test, which the test makes the user of this slot. */
const FAKE_QEMU_SLOT = 7
/** No process has it: the largest pid is 4194304. */
const QEMU_GONE = { pid: 4_194_305, started: '1' }

async function start(t: TestContext, records: StoredVm[], generations: number[] = []) {
  const dataDir = await makeFolder(t)
  const runDir = await makeFolder(t)
  const registry = openRegistry(path.join(dataDir, 'vms'))
  for (const record of records) await registry.write(record)
  const snapshots = await openSnapshotStore(path.join(dataDir, 'snapshots'))
  for (const generation of generations) {
    await snapshots.add(await makeManifest(snapshots, SANDBOX, generation, [`m${generation}`, `s${generation}`]))
  }
  const released: number[] = []
  const errors: object[] = []
  const kept: number[] = []
  const stored = new Map<number, string>()
  /** The pids in each cgroup. */
  const processes = new Map<string, number[]>([['stray', []]])
  const slots = {
    taken: [] as number[],
    keep: (slot: number) => void kept.push(slot),
    findStoredAddress: (slot: number) => stored.get(slot),
    release: async (slot: number) => void released.push(slot),
    usage: async () => new Map([[VMM.slot, { used_bytes: 1, ingress_bytes: 2 }]]),
    destinations: async () => ({ flows: [], decisions: [] }),
  }
  const deps = {
    metrics: createMetrics(),
    activity: createActivity(),
    config: { dataDir, runDir },
    machine: { binary: 'fake-qemu' },
    uidOf: (slot: number) => process.getuid!() - FAKE_QEMU_SLOT + slot,
    cgroups: {
      list: async () => [...processes.keys()],
      listProcesses: async (id: string) => processes.get(id) ?? [],
      remove: async (id: string) => void processes.delete(id),
      findMemoryEvents: async () => undefined,
    },
    log: { error: (details: object) => errors.push(details), warn: assert.fail },
    registry,
    snapshots,
    rings: new Rings(path.join(dataDir, 'metrics')),
    network: { slots },
    diskGuard: { add: () => ({ remove() {} }) },
  } as unknown as Deps // Only what adoptAll uses.
  const entries = new Entries()
  const adopt = () => adoptAll(deps, entries)
  const addVmmFolder = (id: string) => mkdirSync(path.join(dataDir, 'bodies', id, 'work'), { recursive: true })
  const recordFile = path.join(dataDir, 'vms', `${SANDBOX}.json`)
  const writeRecordFile = (text: string) => {
    mkdirSync(path.dirname(recordFile), { recursive: true })
    writeFileSync(recordFile, text)
  }
  /** A process in the cgroup of a VMM. */
  const startQemu = async (id: string) => {
    const script = 'console.log("up"); setInterval(() => {}, 1000)'
    const child = spawn(process.execPath, ['-e', script])
    processes.set(id, [child.pid!]) // It was started: it exists.
    t.after(() => child.kill('SIGKILL'))
    mkdirSync(path.join(runDir, id))
    await once(child.stdout, 'data')
    return child
  }
  const it = { dataDir, runDir, registry, snapshots, slots, released, errors, entries, adopt, addVmmFolder }
  return { ...it, deps, kept, stored, recordFile, writeRecordFile, startQemu }
}

test('a paused sandbox stays paused', async (t) => {
  const it = await start(t, [PAUSED], [2])

  assert.deepEqual(await it.adopt(), { running: 0, paused: 1, dead: 0 })
  assert.deepEqual(it.entries.get(SANDBOX).record, PAUSED)
})

test('a running sandbox whose QEMU is gone is dead: its slot is released, its counters and its disk stay', async (t) => {
  const it = await start(t, [{ ...RUNNING, generation: null, vmm: { ...VMM, qemu: QEMU_GONE } }])
  it.addVmmFolder(VMM.id)
  it.addVmmFolder('stray')

  assert.deepEqual(await it.adopt(), { running: 0, paused: 0, dead: 1 })

  const { records } = await it.registry.list()
  const [record] = records
  assert.ok(record?.state === 'dead')
  assert.match(record.reason, /QEMU process exited while no host agent was running/)
  assert.deepEqual([record.vmm.resources, record.counts?.used_bytes, it.released], ['released', 1, [VMM.slot]])
  assert.deepEqual(readdirSync(path.join(it.dataDir, 'bodies')), [VMM.id])
})

test('the slot of a dead sandbox is not released if another one has it by now', async (t) => {
  const it = await start(t, [{ ...DEAD, generation: null, vmm: { ...VMM, qemu: QEMU_GONE } }])
  it.slots.taken.push(VMM.slot)

  await it.adopt()

  const { record } = it.entries.get(SANDBOX)
  assert.deepEqual([record.state, it.released], ['dead', []])
})

test('a running sandbox with a newer generation than its record was paused, and its VMM is stopped', async (t) => {
  const it = await start(t, [{ ...RUNNING, vmm: { ...VMM, qemu: QEMU_GONE } }], [2, 3])
  it.addVmmFolder(VMM.id)

  assert.deepEqual(await it.adopt(), { running: 0, paused: 1, dead: 0 })

  const { records } = await it.registry.list()
  assert.ok(records[0]?.state === 'paused')
  assert.equal(records[0].generation, 3)
  assert.deepEqual(readdirSync(path.join(it.dataDir, 'bodies')), [])
})

test('an unreadable record with a generation is set aside, reported, and rebuilt as paused', async (t) => {
  const it = await start(t, [], [2])
  it.writeRecordFile('\0\0\0')

  assert.deepEqual(await it.adopt(), { running: 0, paused: 1, dead: 0 })

  const { records } = await it.registry.list()
  assert.ok(records[0]?.state === 'paused')
  assert.deepEqual([records[0].generation, records[0].fence], [2, 0])
  assert.equal(readFileSync(`${it.recordFile}.unreadable`, 'utf8'), '\0\0\0')
  assert.equal(it.errors.length, 1)
})

test('an unreadable record of a sandbox that was never saved keeps whatever it may name', async (t) => {
  const it = await start(t, [])
  it.writeRecordFile('{}')
  it.addVmmFolder(VMM.id)
  const layer = it.snapshots.fileOf('fedcba9876543210-d0')
  writeFileSync(layer, 'its disk is layered on this')
  const qemu = await it.startQemu(VMM.id)

  assert.deepEqual(await it.adopt(), { running: 0, paused: 0, dead: 0 })
  await it.snapshots.collect()

  assert.equal(qemu.signalCode, null)
  assert.deepEqual(it.kept, [FAKE_QEMU_SLOT])
  assert.ok([it.recordFile, layer, path.join(it.runDir, VMM.id)].every((file) => existsSync(file)))
  assert.deepEqual(readdirSync(path.join(it.dataDir, 'bodies')), [VMM.id])
  assert.equal(it.errors.length, 2)
})

test('a sandbox with an unreadable record is listed as dead and can only be deleted', async (t) => {
  const it = await start(t, [])
  it.writeRecordFile('{}')
  it.deps.log.warn = () => {} // The delete says that the VMM goes later.
  const vms = new Vms(it.deps)
  await vms.adoptAll()

  const [vm] = vms.list()
  assert.deepEqual([vm?.id, vm?.state], [SANDBOX, 'dead'])
  assert.match(vm?.reason ?? '', /record cannot be read/)
  await assert.rejects(vms.pause(SANDBOX, { fence: 9, limit_ms: 1 }), { code: 'wrong_state' })

  await vms.delete(SANDBOX, 9)

  assert.deepEqual([vms.list(), vms.hasUnreadable, existsSync(it.recordFile)], [[], false, false])
})

test('the record of a newer host agent stays with what it names, also if the sandbox was saved', async (t) => {
  const it = await start(t, [], [2])
  const text = JSON.stringify({ ...RUNNING, version: 3 })
  const other = 'fedcba9876543210'
  it.writeRecordFile(text)
  for (const id of [VMM.id, other]) it.addVmmFolder(id)
  const [named, stray] = [await it.startQemu(VMM.id), await it.startQemu(other)]
  const strayExit = once(stray, 'exit')

  assert.deepEqual(await it.adopt(), { running: 0, paused: 0, dead: 0 })
  await strayExit

  assert.equal(readFileSync(it.recordFile, 'utf8'), text)
  assert.equal(named.signalCode, null)
  assert.deepEqual(readdirSync(path.join(it.dataDir, 'bodies')), [VMM.id])
  assert.equal(it.snapshots.findNewestIntact(SANDBOX)?.generation, 2)
})

test('a VMM that was on standby is stopped, although another record cannot be read', async (t) => {
  const it = await start(t, [{ ...PAUSED, id: `sb-${'1'.repeat(26)}` }])
  it.writeRecordFile('{}')
  it.stored.set(FAKE_QEMU_SLOT, PAUSED.ip)
  const exit = once(await it.startQemu(VMM.id), 'exit')

  await it.adopt()
  await exit

  assert.deepEqual(it.kept, [])
})

test('a committed pause is paused even if its VMM cannot be stopped', async (t) => {
  const it = await start(t, [{ ...RUNNING, vmm: { ...VMM, qemu: QEMU_GONE } }], [2, 3])
  it.slots.release = () => Promise.reject(new Error('netd does not answer'))

  assert.deepEqual(await it.adopt(), { running: 0, paused: 1, dead: 0 })
  assert.equal(it.errors.length, 1)
})

test('a committed pause whose record cannot be written yet is dead, with its VMM, until the next start', async (t) => {
  const it = await start(t, [{ ...RUNNING, vmm: { ...VMM, qemu: QEMU_GONE } }], [2, 3])
  const { write } = it.registry
  it.registry.write = () => {
    it.registry.write = write
    return Promise.reject(new Error('disk full'))
  }

  assert.deepEqual(await it.adopt(), { running: 0, paused: 0, dead: 1 })

  const { records } = await it.registry.list()
  assert.ok(records[0]?.state === 'dead')
  assert.deepEqual([records[0].generation, records[0].vmm.id], [2, VMM.id])
})

test('an exit that is handled while its sandbox is deleted does not bring the record back', async (t) => {
  const it = await start(t, [])
  const entry = it.entries.add({ ...RUNNING, vmm: { ...VMM, qemu: QEMU_GONE } })
  const usage = Promise.withResolvers<never>()
  const exit = Promise.withResolvers<string>()
  it.slots.usage = () => usage.promise
  it.deps.log.warn = () => {}
  await it.registry.write(entry.record)
  const vmm = {
    record: findVmmRecord(entry.record),
    ...{ stopping: false, qmp: { closed: new Promise(() => {}) }, close: () => {} },
    ...{ channel: () => Promise.reject(new Error('gone')), untilExit: () => exit.promise },
  } as unknown as Vmm // Only what a watch and a delete use.
  watchVm(it.deps, entry, vmm, RUNNING.ip)

  exit.resolve('killed')
  await setImmediate()
  await deleteVm(it.deps, it.entries, SANDBOX, 9)
  usage.reject(new Error('the slot is gone'))
  await setImmediate()

  assert.deepEqual([entry.record.state, existsSync(it.recordFile)], ['running', false])
})

test('generations of a sandbox without a record are deleted', async (t) => {
  const it = await start(t, [], [1])

  await it.adopt()

  assert.deepEqual([...it.snapshots.listAll().keys()], [])
})

test('samples of a sandbox without a record are deleted, and of a deleted one too', async (t) => {
  const it = await start(t, [PAUSED], [2])
  const { rings } = it.deps
  const sample = {
    ...{ cpu_cores_used: 1, memory_bytes: 1, memory_used_guest_bytes: 1, memory_limit_bytes: 1, storage_bytes: 1 },
    ...{ net_bytes_in_per_sec: 1, net_bytes_out_per_sec: 1, storage_limit_bytes: 1 },
  }
  const other = `sb-${'1'.repeat(26)}`
  for (const id of [SANDBOX, other]) rings.write(id, 1_000, sample)

  await it.adopt()
  assert.deepEqual([rings.list(SANDBOX, 1_000).length, rings.list(other, 1_000).length], [1, 0])
  await deleteVm({ ...it.deps, standby: { drop: async () => {} } as never }, it.entries, SANDBOX, 9)

  assert.deepEqual(readdirSync(path.join(it.dataDir, 'metrics')), [])
})
