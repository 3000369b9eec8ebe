/** What remains of a resize that QEMU or the guest refuses. Resizes that succeed are in e2e/src/resize.test.ts. */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import type { Deps } from '../deps.ts'
import type { Vmm } from '../vmm/vmm.ts'
import { Entries, type Entry } from './entries.ts'
import { openRegistry } from './registry.ts'
import { resizeVm } from './resize.ts'
import { RUNNING, SANDBOX, VMM } from './testing.ts'

const folder = await mkdtemp(path.join(tmpdir(), 'warren-resize-'))
after(() => rm(folder, { recursive: true }))
const registry = openRegistry(folder)
const log = { error() {}, warn() {} }
const volume = { checkFloor: () => {} }
const deps = { registry, log, volume } as unknown as Deps

const MIB = 1024 * 1024
const request = (disk_mib: number) => ({ fence: 4, disk_mib, limit_ms: 1_000 })

type Qemu = { resize: (bytes: number) => void; diskMib: () => number }

/** A running sandbox with a monitor that answers like this QEMU, and a guest that does not respond. */
function addVm(qemu: Qemu): Entry {
  const entry = new Entries().add(RUNNING)
  const run = async (command: string, args?: { size?: number }) => {
    if (command === 'query-block') return [{ inserted: { 'node-name': 'd0' } }]
    if (command === 'block_resize') return qemu.resize(args!.size!)
    return [{ 'node-name': 'd0', image: { 'virtual-size': qemu.diskMib() * MIB } }]
  }
  const channel = async () => {
    throw new Error('no guest')
  }
  const vmm = { qmp: { run }, record: { ...VMM }, channel } as unknown as Vmm
  entry.live = { vmm, signals: new AbortController(), mounts: undefined, networkRevision: 1 }
  return entry
}

async function readStored() {
  const { records } = await registry.list()
  const { diskMib, growPending } = records.find(({ id }) => id === SANDBOX)!
  return { diskMib, growPending }
}

const refuse = (): never => {
  throw new Error('QEMU: No space left on device')
}

test('a disk that QEMU did not grow keeps its size in the record', async () => {
  const entry = addVm({ resize: refuse, diskMib: () => 10_240 })

  await assert.rejects(resizeVm(deps, entry, request(20_480)), {
    code: 'internal',
    message: `failed to grow disk of ${SANDBOX} to 20480 MiB: QEMU: No space left on device`,
  })

  assert.deepEqual(await readStored(), { diskMib: 10_240, growPending: false })
})

test('a disk that grew in spite of an error, or may have grown, has the new size in the record', async () => {
  for (const diskMib of [() => 20_480, refuse]) {
    const entry = addVm({ resize: refuse, diskMib })

    await assert.rejects(resizeVm(deps, entry, request(20_480)), { code: 'internal' })

    assert.deepEqual(await readStored(), { diskMib: 20_480, growPending: true })
  }
})

test('while the guest does not confirm, the record says so, and a later resize never makes the disk smaller', async () => {
  const sizes: number[] = []
  const entry = addVm({ resize: (bytes) => sizes.push(bytes / MIB), diskMib: () => 10_240 })

  await assert.rejects(resizeVm(deps, entry, request(30_720)), { code: 'guest_unreachable' })
  await assert.rejects(resizeVm(deps, entry, request(20_480)), { code: 'guest_unreachable' })

  assert.deepEqual(sizes, [30_720, 30_720])
  assert.deepEqual(await readStored(), { diskMib: 30_720, growPending: true })
})
