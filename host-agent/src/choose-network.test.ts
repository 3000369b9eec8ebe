import assert from 'node:assert/strict'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { findCandidates } from './choose-network.ts'

test('instances begin at different blocks, and each can have any of them', async (t) => {
  const dataDir = await createDataDir(t)
  const one = await findCandidates({ dataDir, instance: '00000001' }, undefined)
  const other = await findCandidates({ dataDir, instance: '0000003f' }, undefined)
  assert.deepEqual(one.slice(0, 2), ['100.65.0.0/16', '100.66.0.0/16'])
  assert.deepEqual(other.slice(0, 2), ['100.95.0.0/16', '100.64.0.0/16'])
  assert.deepEqual(one.toSorted(), other.toSorted())
  assert.equal(new Set(one).size, 32)
})

test('an instance changes its block only while it has no sandboxes', async (t) => {
  const dataDir = await createDataDir(t)
  const previous = '100.80.0.0/16'
  const candidates = await findCandidates({ dataDir, instance: '00000001' }, previous)
  assert.deepEqual(candidates.slice(0, 2), [previous, '100.65.0.0/16'])

  await mkdir(path.join(dataDir, 'vms'))
  await writeFile(path.join(dataDir, 'vms/sb-1.json'), '{}')
  assert.deepEqual(await findCandidates({ dataDir, instance: '00000001' }, previous), [previous])
})

async function createDataDir(t: TestContext): Promise<string> {
  const dataDir = await mkdtemp(path.join(tmpdir(), 'warren-choose-network-'))
  t.after(() => rm(dataDir, { recursive: true }))
  return dataDir
}
