import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { createHostedApp } from '../testing/with-host.ts'
import { HOST_METRICS_LIMIT_MS } from './host-metrics.ts'
import { startOperatorServer } from './server.ts'

const { deps, host } = await createHostedApp({ startWorker: false, host: { id: '10.0.0.7' } })
const server = await startOperatorServer(deps, { host: '127.0.0.1', port: 0 })
after(() => server.close())

async function scrape(): Promise<{ status: number; text: string; tookMs: number }> {
  const startedAt = performance.now()
  const response = await fetch(`${server.url}/metrics`)
  return { status: response.status, text: await response.text(), tookMs: performance.now() - startedAt }
}

test('a scrape contains the metrics of the host, labelled with its id', async () => {
  const { text } = await scrape()

  assert.match(text, /^warren_host_up\{host="10\.0\.0\.7"\} 1$/m)
  assert.match(text, /^# TYPE warren_host_vms gauge\nwarren_host_vms\{host="10\.0\.0\.7",state="running"\} 0$/m)
  assert.match(text, /^warren_database_connections/m)
})

test('a host that hangs or is down is reported as such and neither slows nor fails a scrape', async () => {
  const hanging = Promise.withResolvers<void>()
  host.hooks.metrics = () => hanging.promise
  const whileHanging = await scrape()
  hanging.resolve()
  host.hooks = {}
  await host.stop()
  const whileDown = await scrape()
  await host.start()

  for (const { status, text, tookMs } of [whileHanging, whileDown]) {
    assert.equal(status, 200)
    assert.match(text, /^warren_host_up\{host="10\.0\.0\.7"\} 0$/m)
    assert.doesNotMatch(text, /warren_host_vms/)
    assert.match(text, /^warren_database_connections/m)
    assert.ok(tookMs < 3 * HOST_METRICS_LIMIT_MS, `${tookMs} ms`)
  }
  assert.match((await scrape()).text, /^warren_host_up\{host="10\.0\.0\.7"\} 1$/m)
})
