import assert from 'node:assert/strict'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { suiteForQemu } from './kernel.ts'
import { findModules, orderModules, readDependencies } from './modules.ts'
import { makeFolder } from './testing.ts'

test('modules are sorted after their dependencies, each once, without built-in ones', async () => {
  const needs: Record<string, string[]> = {
    virtio_pci: ['virtio', 'legacy'],
    legacy: ['virtio'],
    virtio: [],
    blk: ['virtio'],
  }

  const order = await orderModules(
    ['virtio_pci', 'blk', 'built_in'],
    (name) => name in needs,
    async (name) => needs[name] ?? [],
  )

  assert.deepEqual(order, ['virtio', 'legacy', 'virtio_pci', 'blk'])
})

test('dependencies are read from the module', async (t) => {
  const folder = await makeFolder(t)
  const module = path.join(folder, 'net.ko')
  await writeFile(module, '\x7fELF…\0license=GPL\0depends=net-failover,virtio\0retpoline=Y\0')
  await writeFile(path.join(folder, 'other.ko'), 'no module')

  assert.deepEqual(await readDependencies(module), ['net_failover', 'virtio'])
  await assert.rejects(readDependencies(path.join(folder, 'other.ko')), /is not a kernel module/)
})

test('modules are found by name, compressed or not, with dashes or underscores', async (t) => {
  const folder = await makeFolder(t)
  await mkdir(path.join(folder, 'kernel/drivers'), { recursive: true })
  await writeFile(path.join(folder, 'kernel/drivers/virtio-rng.ko.xz'), '')
  await writeFile(path.join(folder, 'kernel/virtio.ko'), '')
  await writeFile(path.join(folder, 'modules.order'), '')

  const modules = await findModules(folder)

  assert.deepEqual([...modules.keys()].sort(), ['virtio', 'virtio_rng'])
  assert.equal(modules.get('virtio'), path.join(folder, 'kernel/virtio.ko'))
})

test('an old QEMU gets the kernel that it boots reliably', () => {
  assert.equal(suiteForQemu('7.2.22'), 'bookworm')
  assert.equal(suiteForQemu('8.2.0'), 'trixie')
  assert.equal(suiteForQemu('10.0.2'), 'trixie')
})
