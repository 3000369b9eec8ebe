/** A new data directory creates its first sandbox at once: its base is booted before `ready`, or by another instance. */
import assert from 'node:assert/strict'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { type TestContext, test } from 'node:test'
import { createDataDir, startInstance, stop } from './support/instance.ts'
import { listLeftovers } from './support/leftovers.ts'
import { createSandbox, destroySandbox, request, runShell } from './support/sandboxes.ts'
import { cannotRunVms, VM_ENV, VM_READY_LIMIT_MS, type VmInstance } from './support/vm-instance.ts'

async function start(t: TestContext, sharedBases: string): Promise<VmInstance> {
  const dataDir = await createDataDir(t)
  const env = { ...VM_ENV, WARREN_POOL_MIB: '0', WARREN_SHARED_BASES: sharedBases }
  const instance = await startInstance(dataDir, { env, readyLimitMs: VM_READY_LIMIT_MS })
  return { instance } as VmInstance // The requests below need no client.
}

const createKind = async (warren: VmInstance, body: object) => {
  const created = (await createSandbox(warren, body)) as { id: string; spawn_kind?: string; spawn_ms?: number }
  assert.equal(await runShell(warren, created.id, 'cat /etc/machine-id | wc -c'), '33')
  return created
}

test('a base is booted once for all data directories, and the answer to a create tells', {
  skip: cannotRunVms,
}, async (t) => {
  const shared = await mkdtemp(path.join(tmpdir(), 'warren-bases-'))
  t.after(() => rm(shared, { recursive: true }))
  const rare = { shape: 's-1vcpu-256mb', disk_mib: 4096 }
  const one = await start(t, shared)

  const common = await createKind(one, { shape: 's-1vcpu-1gb' })
  const first = await createKind(one, rare)
  const second = await createKind(one, rare)
  const seen = (await request(one, 'GET', `/sandboxes/${common.id}`)).data
  for (const { id } of [common, first, second]) await destroySandbox(one, id)
  assert.equal(await stop(one.instance), 0)

  const other = await start(t, shared)
  const shares = await createKind(other, rare)
  await destroySandbox(other, shares.id)
  assert.equal(await stop(other.instance), 0)

  assert.deepEqual(
    [common, first, second, shares].map(({ spawn_kind }) => spawn_kind),
    ['clone', 'boot', 'clone', 'clone'],
  )
  assert.deepEqual([seen.spawn_ms, 'spawn_kind' in seen], [common.spawn_ms, false])
  assert.ok(shares.spawn_ms! < first.spawn_ms!, `${shares.spawn_ms} ms, ${first.spawn_ms} ms for the boot`)
  for (const { instance } of [one, other]) assert.deepEqual(listLeftovers(instance.dataDir), [])
})
