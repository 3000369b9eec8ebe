import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../../deps.ts'
import { makeFolder } from '../../images/testing.ts'
import { openSnapshotStore } from '../../snapshots/store.ts'
import { startWorkerPool } from '../../snapshots/worker-pool.ts'
import { SANDBOX, VMM } from '../../vms/testing.ts'
import { workFolderOf } from '../folders.ts'
import type { Vmm } from '../vmm.ts'
import { startChain } from './chain.ts'
import { mergeFrozenDisks, prepareNextDisk } from './live.ts'
import { createOverlay } from './qcow2/overlay.ts'

test('a freeze whose reply came too late counts: its disk is not replaced by an empty one', async (t) => {
  const deps = { config: { dataDir: await makeFolder(t) } } as unknown as Deps // Only what the folders need.
  const work = workFolderOf(deps, VMM.id)
  mkdirSync(work, { recursive: true })
  for (const disk of [0, 1]) writeFileSync(path.join(work, `disk-${disk}.qcow2`), `disk ${disk}`)
  // QEMU writes to disk 1. The record still says 0, because the reply to the freeze was not waited for any longer.
  const qmp = { run: async () => [{ inserted: { 'node-name': 'd1' } }] }
  const vmm = { qmp, record: { ...VMM, uid: process.getuid!() } } as unknown as Vmm

  await prepareNextDisk(deps, vmm, 1024)

  assert.equal(vmm.record.disk.active, 1)
  assert.equal(readFileSync(path.join(work, 'disk-1.qcow2'), 'utf8'), 'disk 1')
  assert.deepEqual(readdirSync(work).sort(), ['disk-0.qcow2', 'disk-1.qcow2', 'disk-2.qcow2'])
})

/** A VM whose disks 0 to 7 were frozen by live forks. `refused`: a command that QEMU refuses. */
async function makeForked(t: TestContext, refused?: string) {
  const dataDir = await makeFolder(t)
  const snapshots = await openSnapshotStore(path.join(dataDir, 'snapshots'))
  const workers = startWorkerPool(1)
  t.after(() => workers.close())
  const deps = { config: { dataDir }, snapshots, workers } as unknown as Deps
  const work = workFolderOf(deps, VMM.id)
  mkdirSync(work, { recursive: true })
  const backing = { file: 'below', format: 'raw' as const }
  for (let disk = 0; disk <= 8; disk++) {
    await createOverlay(path.join(work, `disk-${disk}.qcow2`), { sizeMib: 16, backing })
  }
  const qmp = {
    async run(command: string) {
      if (command === refused) throw new Error(`${command}: refused`)
      return command === 'query-block' ? [{ inserted: { 'node-name': 'd8' } }] : []
    },
  }
  const vmm = { qmp, record: { ...VMM, uid: process.getuid!(), disk: startChain([], null) } } as unknown as Vmm
  const listObjects = () => readdirSync(path.join(dataDir, 'snapshots/objects'))
  return { deps, vmm, work, listObjects, vm: { id: SANDBOX, diskMib: 16 } }
}

test('eight frozen disks become one layer, and only then are their files deleted', async (t) => {
  const { deps, vmm, work, listObjects, vm } = await makeForked(t)
  let filesAtWrite: string[] = []

  await mergeFrozenDisks(deps, vm, vmm, async () => {
    filesAtWrite = readdirSync(work)
  })

  assert.deepEqual([vmm.record.disk.firstUnsaved, vmm.record.disk.active], [8, 8])
  assert.deepEqual(listObjects(), vmm.record.disk.layers)
  assert.ok(filesAtWrite.includes('disk-0.qcow2'))
  assert.deepEqual(readdirSync(work).sort(), ['disk-8.qcow2', 'under-8-0.qcow2'])
})

test('a merge that QEMU refuses leaves the chain as it is, and no layer in the store', async (t) => {
  const { deps, vmm, work, listObjects, vm } = await makeForked(t, 'blockdev-reopen')

  await assert.rejects(
    mergeFrozenDisks(deps, vm, vmm, async () => {}),
    /refused/,
  )

  assert.deepEqual(vmm.record.disk, { ...startChain([], null), active: 8 })
  assert.deepEqual(listObjects(), [])
  assert.ok(readdirSync(work).includes('disk-0.qcow2'))
})

test('if the record cannot be written, both the old files and the merged layer stay', async (t) => {
  const { deps, vmm, work, listObjects, vm } = await makeForked(t)

  await assert.rejects(
    mergeFrozenDisks(deps, vm, vmm, async () => {
      throw new Error('the disk is full')
    }),
    /the disk is full/,
  )

  assert.deepEqual(listObjects(), vmm.record.disk.layers)
  for (let disk = 0; disk <= 8; disk++) assert.ok(readdirSync(work).includes(`disk-${disk}.qcow2`))
})
