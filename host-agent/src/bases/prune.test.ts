import assert from 'node:assert/strict'
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
import type { VmRecord } from '../vms/registry.ts'
import { pruneBases } from './prune.ts'

const CURRENT = { machine: { version: '7.2' }, kernel: 'k2', initramfs: 'i2', image: 'debian' }

async function start(t: TestContext, bases: Record<string, object | undefined>, saved: string[] = []) {
  const dataDir = await makeFolder(t)
  for (const [name, facts] of Object.entries(bases)) {
    await mkdir(path.join(dataDir, 'bases', name), { recursive: true })
    if (facts) await writeFile(path.join(dataDir, 'bases', name, 'manifest.json'), JSON.stringify(facts))
  }
  const generations = saved.map((base) => ({ manifest: { needs: { base } } }))
  const deps = {
    config: { dataDir },
    machine: CURRENT.machine,
    kernel: { digest: CURRENT.kernel },
    initramfs: { digest: CURRENT.initramfs },
    images: {
      list: async () => [{ name: 'debian:13', state: 'ready' }],
      find: async () => ({ digest: 'debian' }),
    },
    snapshots: { listAll: () => new Map([['sb-1', generations]]) },
    log: { info: () => {}, warn: (details: { err: unknown }) => assert.fail(String(details.err)) },
  } as unknown as Deps // What it uses of them.
  return { deps, left: () => readdir(path.join(dataDir, 'bases')) }
}

test('what today builds stays, what only yesterday built goes', async (t) => {
  const { deps, left } = await start(t, {
    today: CURRENT,
    agent: { ...CURRENT, initramfs: 'i1' },
    kernel: { ...CURRENT, kernel: 'k1' },
    qemu: { ...CURRENT, machine: { version: '7.1' } },
    image: { ...CURRENT, image: 'ubuntu' },
  })

  await pruneBases(deps, [])

  assert.deepEqual(await left(), ['today'])
})

test('of whatever a sandbox was made, saved or running, stays', async (t) => {
  const old = { ...CURRENT, kernel: 'k1' }
  const { deps, left } = await start(t, { running: old, saved: old, neither: old }, ['saved'])

  await pruneBases(deps, [{ body: { base: 'running' } } as VmRecord, {}])

  assert.deepEqual((await left()).sort(), ['running', 'saved'])
})

test('damaged ones and builds that were killed go', async (t) => {
  const { deps, left } = await start(t, { 'today.damaged': CURRENT, 'today.new': undefined, today: CURRENT })

  await pruneBases(deps, [])

  assert.deepEqual(await left(), ['today'])
})
