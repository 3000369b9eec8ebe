/** Traces of the control plane, with a fake host whose router continues them in the same process. */
import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { type ReceivedSpan, startCollector } from '@warren/kit/testing/collector'
import { until } from '@warren/kit/testing/until'
import { buildApp } from '../app.ts'
import { createHostedApp } from '../testing/with-host.ts'
import { startTracing } from './tracing.ts'

const CALLER = { traceId: '4bf92f3577b34da6a3ce929d0e0e4736', spanId: '00f067aa0ba902b7' }

process.env.OTEL_BSP_SCHEDULE_DELAY = '50'
const collector = await startCollector()
after(() => collector.close())
const { deps, user, host } = await createHostedApp()
const tracing = (await startTracing(collector.url, deps.log))!
const app = await buildApp(deps, tracing)
after(async () => {
  await app.close()
  await tracing.stop()
})

/** The names from the first span of a trace to the one with this name. */
const pathTo = (name: string): Promise<string[]> =>
  until(() => {
    const path: ReceivedSpan[] = []
    let current = collector.spans.find((span) => span.name === name)
    while (current) {
      path.unshift(current)
      const { parentSpanId } = current
      current = collector.spans.find((span) => span.spanId === parentSpanId)
    }
    return path[0]?.parentSpanId === CALLER.spanId && path.map((span) => span.name)
  }, `the collector has the spans from the request to ${name}`)

test('a trace follows a request to the host, directly and through a job, and leaves out background work', async () => {
  const { headers } = await user()
  const traceparent = `00-${CALLER.traceId}-${CALLER.spanId}-01`

  const created = await app.inject({
    method: 'POST',
    url: '/v1/sandboxes?secret=1',
    headers: { ...headers, traceparent },
    payload: { shape: 's-1vcpu-256mb' },
  })
  const { id } = created.json().data
  await app.inject({ method: 'POST', url: `/v1/sandboxes/${id}/pause`, headers: { ...headers, traceparent } })

  assert.deepEqual(await pathTo('createVm'), ['POST /v1/sandboxes', 'host: create VM', 'createVm'])
  assert.deepEqual(await pathTo('reserve'), ['POST /v1/sandboxes', 'reserve'])
  assert.deepEqual(await pathTo('pauseVm'), [
    'POST /v1/sandboxes/:id/pause',
    'pause-sandbox',
    'host: pause VM',
    'pauseVm',
  ])
  assert.ok(host.calls.includes('GET /v1/host'))
  assert.deepEqual(
    collector.spans.filter((span) => span.traceId !== CALLER.traceId || span.name === 'getHost'),
    [],
  )
})
