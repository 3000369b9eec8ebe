/** Stopping a Warren that has run VMs: without sandboxes the machine is as it was before. */
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CreateosSandboxClient } from '@nodeops-createos/sandbox'
import { createDataDir, listProcesses, startInstance, stop } from './support/instance.ts'
import { listLeftovers } from './support/leftovers.ts'
import { cannotRunVms, deleteAllSandboxes, VM_ENV, VM_READY_LIMIT_MS } from './support/vm-instance.ts'

test('a stop without sandboxes leaves nothing on the machine', { skip: cannotRunVms }, async (t) => {
  const dataDir = await createDataDir(t)
  const instance = await startInstance(dataDir, { env: VM_ENV, readyLimitMs: VM_READY_LIMIT_MS })
  const client = new CreateosSandboxClient({ baseUrl: instance.baseUrl, apiKey: instance.key })
  // Without the client, which would retry a 503: Warren must serve creates as soon as it says that it is ready.
  const body = JSON.stringify({ shape: 's-1vcpu-256mb' })
  const first = await fetch(`${instance.baseUrl}/v1/sandboxes`, {
    method: 'POST',
    headers: { 'x-api-key': instance.key },
    body,
  })
  assert.equal(first.status, 200, await first.text())
  const kinds = new Set(listLeftovers(dataDir).map(({ kind }) => kind))
  await deleteAllSandboxes({ instance, client })

  const code = await stop(instance)
  assert.equal(code, 0, instance.output())

  assert.deepEqual(kinds, new Set(['process', 'folder', 'cgroup', 'namespace', 'interface', 'table', 'route']))
  assert.deepEqual(listLeftovers(dataDir), [])
  assert.deepEqual(listProcesses(dataDir), [])
})
