/** What an operator sees of the operations of a sandbox: the metrics of its host, and traces through all processes. */
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import http from 'node:http'
import { after, describe, test } from 'node:test'
import { type ReceivedSpan, startCollector } from '@warren/kit/testing/collector'
import { until } from '@warren/kit/testing/until'
import { getHostAgentPid, kill } from './support/instance.ts'
import { cannotRunPrometheus, startPrometheus } from './support/prometheus.ts'
import {
  createSandbox,
  destroySandbox,
  forkSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  waitForStatus,
} from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

/** Spans are sent in batches; by default every 5 s. */
const BATCH_MS = '100'
/** Host and control plane read the clock in different processes. */
const CLOCK_TOLERANCE_MS = 5

const collector = await startCollector()
after(() => collector.close())
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({ OTEL_EXPORTER_OTLP_ENDPOINT: collector.url, OTEL_BSP_SCHEDULE_DELAY: BATCH_MS }),
)

type TracedResponse = { traceId: string; spanId: string; data: Record<string, unknown> }

/** A request as a span of a client's trace. */
async function requestTraced(method: string, path: string, body: object = {}): Promise<TracedResponse> {
  const [traceId, spanId] = [randomBytes(16).toString('hex'), randomBytes(8).toString('hex')]
  const { baseUrl, key } = warren.instance
  const response = await fetch(`${baseUrl}/v1${path}`, {
    method,
    headers: {
      'x-api-key': key,
      'content-type': 'application/json',
      traceparent: `00-${traceId}-${spanId}-01`,
    },
    body: JSON.stringify(body),
  })
  const { data } = (await response.json()) as { data: Record<string, unknown> }
  assert.ok(response.ok, `${method} ${path}: ${response.status}`)
  return { traceId, spanId, data }
}

/** The span with this name, and its ancestors up to the client's own span, outermost first. */
async function waitForPath(traceId: string, name: string): Promise<ReceivedSpan[]> {
  const inTrace = (match: (span: ReceivedSpan) => boolean) =>
    collector.spans.find((span) => span.traceId === traceId && match(span))
  return until(() => {
    const path: ReceivedSpan[] = []
    let current = inTrace((span) => span.name === name)
    while (current) {
      path.unshift(current)
      const { parentSpanId } = current
      current = inTrace((span) => span.spanId === parentSpanId)
    }
    // A parent ends, and is sent, after its children.
    return path[0]?.service === 'warren-control-plane' && /^[A-Z]+ \//.test(path[0].name) ? path : undefined
  }, `the collector has ${name} and its ancestors`)
}

const namesOf = (path: ReceivedSpan[]): string[] => path.map((span) => span.name)

/** Where Prometheus would scrape. */
const metricsUrl = (): URL => new URL(/^ +metrics +(\S+)$/m.exec(warren.instance.output())![1]!)
const scrapeText = async (): Promise<string> => (await fetch(metricsUrl())).text()

/** The samples of a scrape by their names with labels, without the label `host`. */
async function scrape(): Promise<Map<string, number>> {
  const text = await scrapeText()
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

/** Any response of a sandbox through the ingress. */
async function useIngress(): Promise<void> {
  const { id } = await createSandbox(warren, { ingress_enabled: true })
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', SERVER] })
  const { ingress_url_template } = await requestOk(warren, 'GET', `/sandboxes/${id}`)
  const url = new URL(String(ingress_url_template).replace('<port>', '8000'))
  const request = () =>
    new Promise<number>((resolve, reject) => {
      const options = { host: '127.0.0.1', port: url.port, headers: { host: url.host }, agent: false }
      http
        .get(options, (response) => response.resume().once('end', () => resolve(response.statusCode!)))
        .once('error', reject)
    })
  await until(async () => (await request()) === 200, 'the server in the sandbox responds')
  await destroySandbox(warren, id)
}
const SERVER = `use IO::Socket::INET; $s = IO::Socket::INET->new(LocalPort => 8000, Listen => 9, ReuseAddr => 1) or die;
while ($c = $s->accept) { while (<$c>) { last if /^\\r?$/ } print $c "HTTP/1.1 200 OK\\r\\nContent-Length: 0\\r\\n\\r\\n"; close $c }`

type Dashboard = { panels: { title: string; targets?: { expr: string }[] }[] }

/** With the variables that Grafana replaces. */
async function readDashboardQueries(): Promise<{ title: string; query: string }[]> {
  const text = await readFile(new URL('../../docs/grafana/warren.json', import.meta.url), 'utf8')
  const { panels } = JSON.parse(text) as Dashboard
  return panels.flatMap(({ title, targets = [] }) =>
    targets.map(({ expr }) => ({
      title,
      query: expr.replaceAll('$__rate_interval', '10m').replaceAll('$host', '.*'),
    })),
  )
}

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

  test('a create is one trace, from the client through the control plane and the host agent into the guest', async () => {
    const { traceId, spanId } = await requestTraced('POST', '/sandboxes', { shape: 's-1vcpu-256mb' })

    const path = await waitForPath(traceId, 'identity')

    assert.deepEqual(
      path.map(({ service, name }) => `${service} ${name}`),
      [
        'warren-control-plane POST /v1/sandboxes',
        'warren-control-plane host: create VM',
        'warren-host-agent createVm',
        'warren-host-agent ask guest: /wake',
        'warren-guest-agent guest: /wake',
        'warren-guest-agent identity',
      ],
    )
    assert.equal(path[0]!.parentSpanId, spanId)
    for (const [i, inner] of path.entries()) {
      const outer = path[i - 1]
      if (!outer) continue
      assert.ok(inner.startMs >= outer.startMs - CLOCK_TOLERANCE_MS, `${inner.name} starts before ${outer.name}`)
      assert.ok(inner.endMs <= outer.endMs + CLOCK_TOLERANCE_MS, `${inner.name} ends after ${outer.name}`)
    }
    for (const step of ['reserve', 'find base', 'assign network', 'resume CPUs', 'clock', 'entropy', 'commit']) {
      await waitForPath(traceId, step)
    }
  })

  test('exec, pause, resume and fork are traced in the same way, also where a job does the work', async () => {
    const { id } = await createSandbox(warren)

    const exec = await requestTraced('POST', `/sandboxes/${id}/exec`, { cmd: 'true' })
    const pause = await requestTraced('POST', `/sandboxes/${id}/pause`)
    await waitForStatus(warren, id, 'paused')
    const resume = await requestTraced('POST', `/sandboxes/${id}/resume`)
    await waitForStatus(warren, id, 'running')
    const fork = await requestTraced('POST', `/sandboxes/${id}/fork`, { live: true })
    await waitForStatus(warren, fork.data.id as string, 'running')

    assert.deepEqual(namesOf(await waitForPath(exec.traceId, 'start program')), [
      'POST /v1/sandboxes/:id/exec',
      'callGuest',
      'guest: /exec',
      'start program',
    ])
    assert.deepEqual(namesOf(await waitForPath(pause.traceId, 'save memory')), [
      'POST /v1/sandboxes/:id/pause',
      'pause-sandbox',
      'host: pause VM',
      'pauseVm',
      'save VM',
      'save memory',
    ])
    assert.deepEqual(namesOf(await waitForPath(resume.traceId, 'clock')), [
      'POST /v1/sandboxes/:id/resume',
      'resume-sandbox',
      'host: resume VM',
      'resumeVm',
      'ask guest: /wake',
      'guest: /wake',
      'clock',
    ])
    assert.deepEqual(namesOf(await waitForPath(fork.traceId, 'add child')).slice(-2), ['forkVm', 'add child'])
    assert.deepEqual(namesOf(await waitForPath(fork.traceId, 'load memory')).slice(1), [
      'commit', // The transaction that adds the job.
      'start-fork',
      'host: resume VM',
      'resumeVm',
      'start VMM',
      'load memory',
    ])
  })

  test('appear in every graph of the dashboard', { skip: cannotRunPrometheus }, async (t) => {
    const queries = await readDashboardQueries()
    assert.ok(queries.length > 20)
    const used = new Set(queries.flatMap(({ query }) => query.match(/\b(warren|process|nodejs)_[a-z0-9_]+/g) ?? []))
    const prometheus = await startPrometheus(t, metricsUrl().host)
    await useIngress()

    const described = new Set(Array.from((await scrapeText()).matchAll(/^# TYPE (\S+)/gm), ([, name]) => name!))
    for (const name of used) {
      assert.ok(described.has(name) || described.has(name.replace(/_(bucket|count)$/, '')), `no scrape has ${name}`)
    }
    for (const { title, query } of queries) {
      // A rate needs two scrapes.
      const series = await until(async () => {
        const found = await prometheus.query(query)
        return found.length > 0 ? found : undefined
      }, `"${title}" has data: ${query}`)
      assert.doesNotMatch(query, /\$/, `${title} has a variable that is not replaced`)
      for (const { value } of series) assert.match(value[1], /^[\d.e+-]+$|^NaN$/, title)
    }
  })

  test('are not reported while the host agent is down', async () => {
    kill(await getHostAgentPid(warren.instance.dataDir))

    await until(async () => (await scrape()).get('warren_host_up') === 0, 'the host is reported as down')
    assert.ok((await scrape()).has('warren_database_connections{state="open"}'))

    await until(async () => (await scrape()).get('warren_host_up') === 1, 'the host is reported as up again', 120_000)
    assert.equal((await scrape()).get('warren_host_vms{state="running"}'), 5)
  })
})
