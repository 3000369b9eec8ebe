import assert from 'node:assert/strict'
import { mkdir, writeFile } from 'node:fs/promises'
import path from 'node:path'
import { test } from 'node:test'
import { suiteForQemu } from './kernel.ts'
import { findModules, orderModules, readNeeds } from './modules.ts'
import { makeFolder } from './testing.ts'

test('modules come after those they need, each once, and what is built in is left out', async () => {
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

test('what a module needs stands in the module', async (t) => {
  const folder = await makeFolder(t)
  const module = path.join(folder, 'net.ko')
  await writeFile(module, '\x7fELF…\0license=GPL\0depends=net-failover,virtio\0retpoline=Y\0')
  await writeFile(path.join(folder, 'other.ko'), 'no module')

  assert.deepEqual(await readNeeds(module), ['net_failover', 'virtio'])
  await assert.rejects(readNeeds(path.join(folder, 'other.ko')), /is no kernel module/)
})

test('modules are found by name, packed or not, with dashes or not', async (t) => {
  const folder = await makeFolder(t)
  await mkdir(path.join(folder, 'kernel/drivers'), { recursive: true })
  await writeFile(path.join(folder, 'kernel/drivers/virtio-rng.ko.xz'), '')
  await writeFile(path.join(folder, 'kernel/virtio.ko'), '')
  await writeFile(path.join(folder, 'modules.order'), '')

  const modules = await findModules(folder)

  assert.deepEqual([...modules.keys()].sort(), ['virtio', 'virtio_rng'])
  assert.equal(modules.get('virtio'), path.join(folder, 'kernel/virtio.ko'))
})

test('an old QEMU gets the kernel that it boots every time', () => {
  assert.equal(suiteForQemu('7.2.22'), 'bookworm')
  assert.equal(suiteForQemu('8.2.0'), 'trixie')
  assert.equal(suiteForQemu('10.0.2'), 'trixie')
})
