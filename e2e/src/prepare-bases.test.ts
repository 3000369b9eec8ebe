/** Bases that are booted before a create needs them: in the background, and on request of an operator. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { createDataDir, runWarren, startInstance, stop } from './support/instance.ts'
import { listLeftovers } from './support/leftovers.ts'
import { createSandbox, destroySandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, VM_ENV, VM_READY_LIMIT_MS, type VmInstance } from './support/vm-instance.ts'

type Base = { mem_mib: number; disk_mib: number; state: string; vms: number }

const ENV = {
  ...VM_ENV,
  WARREN_POOL_MIB: '0',
  WARREN_SHARED_BASES: 'none',
  WARREN_PREPARE_SHAPES: 's-1vcpu-256mb, s-2vcpu-2gb',
  WARREN_PREPARE_AT_ONCE: 'true',
}

test('bases are prepared in the background and on request, and requests come first', {
  skip: cannotRunVms,
}, async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir, { env: ENV, readyLimitMs: VM_READY_LIMIT_MS })
  const warren = { instance } as VmInstance // The requests below need no client.
  const create = async (body: object) => (await createSandbox(warren, body)) as { id: string; spawn_kind?: string }
  const list = async (): Promise<Base[]> => JSON.parse((await runWarren(dataDir, 'bases', '--json', 'list')).stdout)
  const findState = async (mem_mib: number, disk_mib = 10_240) =>
    (await list()).find((base) => base.mem_mib === mem_mib && base.disk_mib === disk_mib)?.state

  // The first of them is being booted; a create of the same shape waits for that boot.
  await until(async () => (await findState(256)) === 'building', 'a base is booted in the background')
  const joined = await create({ shape: 's-1vcpu-256mb' })

  // The next one yields to a request for another base, and is booted afterwards.
  await until(async () => (await findState(2048)) === 'building', 'the next base is booted')
  const small = ['bases', 'prepare', 'debian:13', 's-1vcpu-256mb', '--disk', '4096']
  const requested = await runWarren(dataDir, ...small)
  const whileOvertaken = await findState(2048)
  const again = await runWarren(dataDir, ...small)
  const afterRequest = await create({ shape: 's-1vcpu-256mb', disk_mib: 4096 })
  await until(async () => (await findState(2048)) === 'ready', 'the base that yielded is ready', VM_READY_LIMIT_MS)
  const prepared = await create({ shape: 's-2vcpu-2gb' })

  const sandboxes = [joined, afterRequest, prepared]
  for (const { id } of sandboxes) assert.equal(await runShell(warren, id, 'echo works'), 'works')
  assert.deepEqual(
    sandboxes.map(({ spawn_kind }) => spawn_kind),
    ['boot', 'clone', 'clone'],
  )
  assert.notEqual(whileOvertaken, 'ready')
  assert.match(requested.stdout, /debian:13 s-1vcpu-256mb: booted in [\d.]+ s/)
  assert.match(again.stdout, /debian:13 s-1vcpu-256mb: is ready/)
  assert.equal((await list()).find(({ disk_mib }) => disk_mib === 4096)?.vms, 1)
  for (const { id } of sandboxes) await destroySandbox(warren, id)
  assert.equal(await stop(instance), 0)
  assert.deepEqual(listLeftovers(dataDir), [], instance.output())
})
