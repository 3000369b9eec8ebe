import assert from 'node:assert/strict'
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import type { Deps } from '../../deps.ts'
import { makeFolder } from '../../images/testing.ts'
import { VMM } from '../../vms/testing.ts'
import { workFolderOf } from '../folders.ts'
import type { Vmm } from '../vmm.ts'
import { prepareNextDisk } from './live.ts'

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
