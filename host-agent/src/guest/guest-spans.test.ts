import assert from 'node:assert/strict'
import { once } from 'node:events'
import http2, { type OutgoingHttpHeaders, type ServerHttp2Stream } from 'node:http2'
import type { AddressInfo } from 'node:net'
import { type TestContext, test } from 'node:test'
import { continueTrace } from '@warren/kit/span'
import { startCollector } from '@warren/kit/testing/collector'
import { startTracing } from '@warren/kit/tracing'
import { GUEST_SPANS_HEADER } from '@warren/protocol'
import { Type } from 'typebox'
import { callGuest } from './call-guest.ts'
import { parseReport, placeSpans } from './guest-spans.ts'

const STEP = { name: 'clock', at_us: 250, took_us: 500 }
const TRACEPARENT = '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'
const REPORT = { took_us: 2_000, steps: [STEP] }

test('the time in the guest is placed in the middle of the time that the host waited', () => {
  const spans = placeSpans('guest wake', REPORT, { from: 1_000, to: 1_010 })

  assert.deepEqual(spans, [
    { name: 'guest wake', startedAt: 1_004, endedAt: 1_006 },
    { name: 'clock', startedAt: 1_004.25, endedAt: 1_004.75 },
  ])
})

test('a guest cannot claim more time than the host waited, nor a step outside of its request', () => {
  const waited = { from: 1_000, to: 1_010 }

  assert.deepEqual(placeSpans('guest wake', { took_us: 10_001, steps: [] }, waited), [])
  assert.deepEqual(placeSpans('guest wake', { took_us: 700, steps: [STEP] }, waited), [])
})

test('a valid report is parsed', () => {
  assert.deepEqual(parseReport(JSON.stringify(REPORT)), REPORT)
})

const HOSTILE: Record<string, unknown> = {
  'no report': undefined,
  'several headers': [JSON.stringify(REPORT), JSON.stringify(REPORT)],
  garbage: '\u0000ÿ{"took_us":',
  'another type': '[]',
  'a negative duration': JSON.stringify({ took_us: -1, steps: [] }),
  'a negative offset': JSON.stringify({ took_us: 9, steps: [{ ...STEP, at_us: -5 }] }),
  'a duration that is no number': '{"took_us":1e999,"steps":[]}',
  'a fraction': JSON.stringify({ took_us: 1.5, steps: [] }),
  'thousands of spans': JSON.stringify({ took_us: 9, steps: Array.from({ length: 5_000 }, () => STEP) }),
  'one span too many': JSON.stringify({ took_us: 9, steps: Array.from({ length: 17 }, () => STEP) }),
  'a huge name': JSON.stringify({ took_us: 9, steps: [{ ...STEP, name: 'x'.repeat(1_000_000) }] }),
  'a name that is too long': JSON.stringify({ took_us: 9, steps: [{ ...STEP, name: 'x'.repeat(33) }] }),
  'a name with control characters': JSON.stringify({ took_us: 9, steps: [{ ...STEP, name: 'a\u001b[31m\n' }] }),
  'deep nesting': '['.repeat(4_000),
}

for (const [what, report] of Object.entries(HOSTILE)) {
  test(`a hostile report is ignored: ${what}`, () => {
    assert.equal(parseReport(report), undefined)
  })
}

test('over the channel, a valid report becomes spans and a hostile one only its request', async (t) => {
  const collector = await startCollector()
  const reports = [JSON.stringify({ took_us: 0, steps: [{ name: 'clock', at_us: 0, took_us: 0 }] })]
  reports.push(...(Object.values(HOSTILE).filter((one) => typeof one === 'string' && isSendable(one)) as string[]))
  const guest = await startGuest(t, (asked) => (asked ? { [GUEST_SPANS_HEADER]: reports.shift()! } : {}))
  const requests = reports.length
  const tracing = startTracing('warren-host-agent', collector.url, { warn() {} })

  for (let i = 0; i < requests; i++) {
    const request = { method: 'GET', path: '/ready', response: Type.Object({}) } as const
    await continueTrace(TRACEPARENT, { name: 'createVm' }, () => callGuest(guest, request, AbortSignal.timeout(10_000)))
  }

  await tracing.stop()
  collector.close()
  const names = collector.spans.filter(({ name }) => name !== 'createVm').map(({ name }) => name)
  assert.ok(requests > 5)
  assert.deepEqual(names.sort(), [...Array(requests).fill('ask guest: /ready'), 'clock', 'guest: /ready'])
})

/** Headers cannot contain control characters, and Node sends at most 64 KiB of them. */
const isSendable = (report: string): boolean => report.length < 60_000 && !/[^\x20-\x7e]/.test(report)

async function startGuest(t: TestContext, headersFor: (isTraced: boolean) => OutgoingHttpHeaders) {
  const server = http2.createServer()
  server.on('stream', (stream: ServerHttp2Stream, headers) => {
    stream.respond({ ':status': 200, ...headersFor(headers.traceparent !== undefined) })
    stream.end('{}')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const session = http2.connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`)
  t.after(() => {
    session.destroy()
    server.close()
  })
  return session
}
