import assert from 'node:assert/strict'
import { mkdir, truncate, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import type { Deps } from '../deps.ts'
import { makeFolder } from '../images/testing.ts'
import { RUNNING, VMM } from '../vms/testing.ts'
import type { Build } from './builds.ts'
import { listBases } from './list.ts'
import { renderBases } from './render.ts'

const CURRENT = { machine: { version: '7.2' }, kernel: 'k2', initramfs: 'i2', image: 'd13' }
const SHAPE = { shape: { vcpu: 1, mem_mib: 256 }, diskMib: 10_240 }

async function start(t: TestContext, bases: Record<string, object>) {
  const dataDir = await makeFolder(t)
  for (const [name, manifest] of Object.entries(bases)) {
    const folder = path.join(dataDir, 'bases', name)
    await mkdir(folder, { recursive: true })
    await writeFile(path.join(folder, 'manifest.json'), JSON.stringify({ id: `id of ${name}`, ...SHAPE, ...manifest }))
    await writeFile(path.join(folder, 'ram'), Buffer.alloc(64 * 1024, 1))
    await truncate(path.join(folder, 'ram'), 256 * 1024 * 1024)
    await writeFile(path.join(folder, 'root.ext4'), Buffer.alloc(1024 * 1024, 1))
  }
  const saved = { manifest: { needs: { base: 'old', baseId: 'id of old' } } }
  return {
    config: { dataDir },
    machine: CURRENT.machine,
    kernel: { digest: CURRENT.kernel },
    initramfs: { digest: CURRENT.initramfs },
    operatorSettings: { ca_certificates: [], default_envs: {} },
    images: { list: async () => [{ name: 'debian:13', state: 'ready' }], find: async () => ({ digest: 'd13' }) },
    snapshots: {
      listAll: () =>
        new Map([
          ['sb-1', [saved, saved]],
          ['sb-2', [saved]],
        ]),
    },
  } as unknown as Deps // Only what listBases uses.
}

test('bases are listed with their state, their size on disk and the sandboxes made from them', async (t) => {
  const deps = await start(t, {
    now: CURRENT,
    old: { ...CURRENT, kernel: 'k1', image: 'd12', imageName: 'debian:12' },
    proxy: { ...CURRENT, operatorSettings: 'of before', shape: { vcpu: 2, mem_mib: 2048 } },
    'now.damaged': { ...CURRENT, shape: { vcpu: 1, mem_mib: 1024 } },
  })
  const running = { ...RUNNING, vmm: { ...VMM, base: 'now', baseId: 'id of now' } }

  const bases = await listBases(deps, [running], [])

  assert.deepEqual(
    bases.map(({ key, image, mem_mib, state, vms }) => [key, image, mem_mib, state, vms]),
    [
      ['old', 'debian:12', 256, 'superseded', 2],
      ['now', 'debian:13', 256, 'ready', 1],
      ['now', 'debian:13', 1024, 'damaged', 0],
      ['proxy', 'debian:13', 2048, 'superseded', 0],
    ],
  )
  for (const { size_bytes } of bases) assert.ok(size_bytes >= 64 * 1024 && size_bytes < 1024 * 1024, `${size_bytes}`)
})

test('a base that is being built is listed with its progress, and not twice when it is done', async (t) => {
  const deps = await start(t, { done: CURRENT })
  const build = (key: string) =>
    ({ wanted: { key, image: { name: 'debian:13' }, ...SHAPE }, progress: 'booting' }) as unknown as Build

  const bases = await listBases(deps, [], [build('done'), build('new')])

  assert.deepEqual(bases.map(({ key, state, progress }) => [key, state, progress]).sort(), [
    ['done', 'ready', undefined],
    ['new', 'building', 'booting'],
  ])
  assert.match(renderBases(bases), /^debian:13 +s-1vcpu-256mb +10240 MiB +building: booting +0 MB +0 +-$/m)
})
