/** What a host agent makes of the records it finds. VMs that still run are covered by e2e. */
import assert from 'node:assert/strict'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
import { openSnapshotStore } from '../snapshots/store.ts'
import { makeManifest } from '../snapshots/testing.ts'
import { adoptAll } from './adopt.ts'
import { Entries } from './entries.ts'
import type { StoredVm } from './record.ts'
import { openRegistry } from './registry.ts'
import { DEAD, PAUSED, RUNNING, SANDBOX, VMM } from './testing.ts'

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
  const slots = {
    taken: [] as number[],
    release: async (slot: number) => void released.push(slot),
    usage: async () => new Map([[VMM.slot, { used_bytes: 1, ingress_bytes: 2 }]]),
    flows: async () => [],
  }
  const deps = {
    config: { dataDir, runDir },
    machine: { binary: 'no-such-qemu' },
    cgroups: { list: async () => ['stray'], remove: async () => {} },
    log: { error: (details: object) => errors.push(details), warn: assert.fail },
    registry,
    snapshots,
    network: { slots },
  } as unknown as Deps // Only what adoptAll uses.
  const entries = new Entries()
  const adopt = () => adoptAll(deps, entries)
  const addVmmFolder = (id: string) => mkdirSync(path.join(dataDir, 'bodies', id, 'work'), { recursive: true })
  return { dataDir, registry, snapshots, slots, released, errors, entries, adopt, addVmmFolder }
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
  const file = path.join(it.dataDir, 'vms', `${SANDBOX}.json`)
  mkdirSync(path.dirname(file), { recursive: true })
  writeFileSync(file, '\0\0\0')

  assert.deepEqual(await it.adopt(), { running: 0, paused: 1, dead: 0 })

  const { records } = await it.registry.list()
  assert.ok(records[0]?.state === 'paused')
  assert.deepEqual([records[0].generation, records[0].fence], [2, 0])
  assert.equal(readFileSync(`${file}.unreadable`, 'utf8'), '\0\0\0')
  assert.equal(it.errors.length, 1)
})

test('an unreadable record of a sandbox that was never saved stays where it is and is reported', async (t) => {
  const it = await start(t, [])
  const file = path.join(it.dataDir, 'vms', `${SANDBOX}.json`)
  mkdirSync(path.dirname(file), { recursive: true })
  writeFileSync(file, '{}')

  assert.deepEqual(await it.adopt(), { running: 0, paused: 0, dead: 0 })

  assert.ok(existsSync(file))
  assert.equal(it.errors.length, 1)
})

test('generations of a sandbox without a record are deleted', async (t) => {
  const it = await start(t, [], [1])

  await it.adopt()

  assert.deepEqual([...it.snapshots.listAll().keys()], [])
})
