import assert from 'node:assert/strict'
import { test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { followHost } from './follow-host.ts'
import type { HostCheck } from './netd-protocol.ts'

const CHECK = { restored: [], upstreams: [{ address: '192.0.2.1', port: 53 }], machine: {} } as unknown as HostCheck

function describeDeps(refreshMachine: () => Promise<void>) {
  const [seen, warnings]: [unknown[], unknown[]] = [[], []]
  const deps = {
    log: { warn: (...parts: unknown[]) => void warnings.push(parts) },
    changeMachine: async (machine: unknown) => void seen.push(machine),
    egressProxy: { setUpstreams: async (upstreams: unknown) => void seen.push(upstreams) },
    s3Proxy: { refreshMachine },
  }
  return { deps, seen, warnings }
}

test('an S3 proxy that does not answer does not hold up the checks of the host', async () => {
  const { deps, seen } = describeDeps(() => Promise.withResolvers<void>().promise)

  await followHost(deps, CHECK)

  assert.deepEqual(seen, [CHECK.machine, CHECK.upstreams])
})

test('an S3 proxy that fails is reported', async () => {
  const { deps, warnings } = describeDeps(() => Promise.reject(new Error('it died')))

  await followHost(deps, CHECK)

  await until(() => warnings.length === 1)
})
