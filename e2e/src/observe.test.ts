/** What an operator sees of the operations of a sandbox: the metrics of its host. */
import assert from 'node:assert/strict'
import { describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import { createSandbox, forkSandbox, pauseSandbox, resumeSandbox, runShell } from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

const warren = await startUnlessSkipped(cannotRunVms, () => startVmInstance())

/** The samples of a scrape by their names with labels, without the label `host`. */
async function scrape(): Promise<Map<string, number>> {
  const [, url] = /^ +metrics +(\S+)$/m.exec(warren.instance.output())!
  const text = await (await fetch(url!)).text()
  const samples = text.split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return new Map(
    samples.map((line) => {
      const [, name, labels = '', value] = /^([^ {]+)(?:\{(.*)\})? (\S+)$/.exec(line)!
      const others = labels.replace(/host="[^"]*",?/, '')
      return [others === '' ? name! : `${name}{${others}}`, Number(value)] as const
    }),
  )
}

/** How often an operation succeeded, however the VM was started. */
const countOf = (samples: Map<string, number>, operation: string): number =>
  [...samples]
    .filter(([name]) => name.startsWith(`warren_host_operation_seconds_count{operation="${operation}"`))
    .filter(([name]) => name.includes('outcome="ok"'))
    .reduce((sum, [, value]) => sum + value, 0)

describe('operations of a sandbox', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  test('are counted and timed in the metrics of the host', async () => {
    const { id } = await createSandbox(warren)
    await pauseSandbox(warren, id)
    await resumeSandbox(warren, id)
    await forkSandbox(warren, id, { live: true })
    await runShell(warren, id, 'getent hosts nowhere.invalid || true')

    const samples = await scrape()

    assert.equal(samples.get('warren_host_up'), 1)
    assert.equal(samples.get('warren_host_vms{state="running"}'), 2)
    assert.equal(samples.get('warren_host_vms{state="dead"}'), 0)
    assert.deepEqual(
      ['create', 'pause', 'resume', 'fork'].map((operation) => countOf(samples, operation)),
      [1, 1, 2, 1], // The fork is resumed as well.
    )
    const poolRequests = ['hit', 'miss'].map(
      (result) => samples.get(`warren_host_pool_requests_total{result="${result}"}`) ?? 0,
    )
    assert.ok(Math.max(...poolRequests) > 0)
    assert.ok(
      samples.get('warren_host_process_request_seconds_count{process="netd",method="claimSlot",outcome="ok"}')! > 1,
    )
    assert.ok(samples.get('warren_host_dns_queries_total{answer="forwarded"}')! > 0)
  })

  test('are not reported while the host agent is down', async () => {
    kill(await getHostAgentPid(warren.instance.dataDir))

    await until(async () => (await scrape()).get('warren_host_up') === 0, 'the host is reported as down')
    assert.ok((await scrape()).has('warren_database_connections{state="open"}'))

    await until(async () => (await scrape()).get('warren_host_up') === 1, 'the host is reported as up again', 120_000)
    assert.equal((await scrape()).get('warren_host_vms{state="running"}'), 2)
  })
})
