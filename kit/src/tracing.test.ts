import assert from 'node:assert/strict'
import { after, test } from 'node:test'
import { addSpans, continueTrace, setTracing, span, traceparent } from './span.ts'
import { startCollector } from './testing/collector.ts'
import { startTracing } from './tracing.ts'
import { VERSION } from './version.ts'

const CALLER = { traceId: '4bf92f3577b34da6a3ce929d0e0e4736', spanId: '00f067aa0ba902b7' }
const SAMPLED = `00-${CALLER.traceId}-${CALLER.spanId}-01`
const NOT_SAMPLED = `00-${CALLER.traceId}-${CALLER.spanId}-00`

const collector = await startCollector()
after(() => collector.close())

/** Runs the work with tracing, and returns what the collector received. */
async function collect(work: () => Promise<unknown>) {
  collector.spans.length = 0
  const tracing = startTracing('warren-test', collector.url, { warn() {} })
  await work().catch(() => {})
  await tracing.stop()
  return collector.spans
}

test('the steps of an operation are spans of the trace of its caller', async () => {
  let sent: string | undefined
  const spans = await collect(() =>
    continueTrace(SAMPLED, { name: 'createVm', sandbox: 'sb-1' }, () =>
      span('start VMM', async () => {
        sent = traceparent()
        addSpans([
          { name: 'guest: /wake', startedAt: 1_000, endedAt: 1_010 },
          { name: 'clock', startedAt: 1_001, endedAt: 1_002.5 },
        ])
      }),
    ),
  )

  const find = (name: string) => spans.find((one) => one.name === name)!
  assert.equal(spans.length, 4)
  assert.ok(spans.every((one) => one.traceId === CALLER.traceId))
  assert.equal(find('createVm').parentSpanId, CALLER.spanId)
  assert.equal(find('start VMM').parentSpanId, find('createVm').spanId)
  assert.equal(sent, `00-${CALLER.traceId}-${find('start VMM').spanId}-01`)
  assert.equal(find('guest: /wake').parentSpanId, find('start VMM').spanId)
  assert.equal(find('clock').parentSpanId, find('guest: /wake').spanId)
  assert.deepEqual([find('createVm').service, find('createVm').version], ['warren-test', VERSION])
  assert.deepEqual([find('clock').service, find('clock').version], ['warren-guest-agent', ''])
  assert.ok(Math.abs(find('clock').endMs - find('clock').startMs - 1.5) < 0.01)
})

test('a failed step keeps its error, and the span ends', async () => {
  const broken = new Error('broken')

  const spans = await collect(() =>
    continueTrace(SAMPLED, { name: 'createVm' }, async () => {
      await assert.rejects(
        span('start VMM', () => Promise.reject(broken)),
        broken,
      )
    }),
  )

  assert.deepEqual(spans.map((one) => one.name).sort(), ['createVm', 'start VMM'])
})

test('nothing is sent outside of a trace, in one that is not sampled, or for an invalid traceparent', async () => {
  const step = () => span('step', async () => traceparent())

  const spans = await collect(async () => {
    assert.equal(await step(), undefined)
    for (const from of [undefined, NOT_SAMPLED, 'garbage', '']) {
      assert.equal(await continueTrace(from, { name: 'operation' }, step), undefined)
    }
  })

  assert.deepEqual(spans, [])
})

test('work that outlives its operation is not part of the trace', async () => {
  const operationEnded = Promise.withResolvers<void>()
  let late: Promise<unknown> | undefined

  const spans = await collect(async () => {
    await continueTrace(SAMPLED, { name: 'pauseVm' }, async () => {
      late = operationEnded.promise.then(() => span('late', async () => {}))
    })
    operationEnded.resolve()
    await late
  })

  assert.deepEqual(
    spans.map((one) => one.name),
    ['pauseVm'],
  )
})

test('without tracing, a step is the work itself', async () => {
  setTracing(undefined)
  const result = Promise.resolve('done')

  assert.equal(
    span('step', () => result),
    result,
  )
  assert.equal(
    continueTrace(SAMPLED, { name: 'createVm' }, () => result),
    result,
  )
  assert.equal(traceparent(), undefined)
})
