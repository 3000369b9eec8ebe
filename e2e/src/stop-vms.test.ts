/** Stopping a Warren that has run VMs: without sandboxes the machine is as it was before. */
import assert from 'node:assert/strict'
import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { globSync } from 'node:fs'
import { test } from 'node:test'
import { CreateosSandboxClient } from '@nodeops-createos/sandbox'
import { createDataDir, listProcesses, startInstance, stop } from './support/instance.ts'
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
  const kinds = new Set(listResources(dataDir).map(({ kind }) => kind))
  await deleteAllSandboxes({ instance, client })

  assert.equal(await stop(instance), 0)

  assert.deepEqual(kinds, new Set(['folder', 'cgroup', 'namespace', 'interface', 'table']))
  assert.deepEqual(listResources(dataDir), [])
  assert.deepEqual(listProcesses(dataDir), [])
})

/** Everything outside the data directory that has the name of the instance (host-agent/src/config.ts). */
function listResources(dataDir: string): { kind: string; name: string }[] {
  const instance = createHash('sha256').update(dataDir).digest('hex').slice(0, 8)
  const files = (kind: string, pattern: string) => globSync(pattern).map((name) => ({ kind, name }))
  const tables = spawnSync('nft', ['list', 'tables'], { encoding: 'utf8' }).stdout.split('\n')
  return [
    ...files('folder', `/run/warren-${instance}`),
    // cgroup v2 has one tree, v1 one for each controller.
    ...files('cgroup', `/sys/fs/cgroup/{,*/}warren-${instance}`),
    ...files('namespace', `/run/netns/warren-${instance}*`),
    ...files('interface', `/sys/class/net/w${instance}*`),
    ...tables.filter((line) => line.includes(`warren_${instance}`)).map((name) => ({ kind: 'table', name })),
  ]
}
