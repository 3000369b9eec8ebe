import assert from 'node:assert/strict'
import { mkdir, readdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
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
    operatorSettings: { ca_certificates: [], default_envs: {} },
    images: {
      list: async () => [{ name: 'debian:13', state: 'ready' }],
      find: async () => ({ digest: 'debian' }),
    },
    snapshots: { listAll: () => new Map([['sb-1', generations]]) },
    log: { info: () => {}, warn: (details: { err: unknown }) => assert.fail(String(details.err)) },
  } as unknown as Deps // Only what pruneBases uses.
  return { deps, remaining: () => readdir(path.join(dataDir, 'bases')) }
}

test('a base of the current inputs stays, one of older inputs is removed', async (t) => {
  const { deps, remaining } = await start(t, {
    current: CURRENT,
    agent: { ...CURRENT, initramfs: 'i1' },
    kernel: { ...CURRENT, kernel: 'k1' },
    qemu: { ...CURRENT, machine: { version: '7.1' } },
    image: { ...CURRENT, image: 'ubuntu' },
    proxy: { ...CURRENT, operatorSettings: 'of a proxy that is not set any more' },
  })

  await pruneBases(deps, [])

  assert.deepEqual(await remaining(), ['current'])
})

test('a base that a running or saved sandbox was made from stays', async (t) => {
  const old = { ...CURRENT, kernel: 'k1' }
  const { deps, remaining } = await start(t, { running: old, saved: old, neither: old }, ['saved'])

  await pruneBases(deps, ['running'])

  assert.deepEqual((await remaining()).sort(), ['running', 'saved'])
})

test('damaged bases and interrupted builds are removed', async (t) => {
  const { deps, remaining } = await start(t, { 'current.damaged': CURRENT, 'current.new': undefined, current: CURRENT })

  await pruneBases(deps, [])

  assert.deepEqual(await remaining(), ['current'])
})
