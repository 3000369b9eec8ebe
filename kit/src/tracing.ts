/**
 * Sends the spans of this process (span.ts) to an OpenTelemetry collector, as OTLP over HTTP. Loaded only if the operator
 * has set OTEL_EXPORTER_OTLP_ENDPOINT. OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES, OTEL_EXPORTER_OTLP_HEADERS,
 * OTEL_TRACES_SAMPLER and OTEL_BSP_* have their usual meaning.
 */
import {
  type Attributes,
  context,
  DiagLogLevel,
  diag,
  propagation,
  ROOT_CONTEXT,
  type Span,
  SpanKind,
  SpanStatusCode,
  type Tracer,
  trace,
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { detectResources, envDetector, resourceFromAttributes } from '@opentelemetry/resources'
import { BasicTracerProvider, BatchSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import { errorText } from './error-text.ts'
import type { Log } from './log.ts'
import { type MeasuredSpan, type Operation, setTracing } from './span.ts'
import { withTimeout } from './timeout.ts'
import { VERSION } from './version.ts'

export type StartedTracing = { provider: NodeTracerProvider; stop(): Promise<void> }

const GUEST_AGENT = 'warren-guest-agent'
const ERROR_MAX_CHARACTERS = 500
/** The last spans are not worth a slow stop. */
const STOP_LIMIT_MS = 1_000
const REPORT_EVERY_MS = 60_000

export function startTracing(service: string, endpoint: string, log: Pick<Log, 'warn'>): StartedTracing {
  reportExportErrors(endpoint, log)
  const processor = new BatchSpanProcessor(new OTLPTraceExporter({ url: `${endpoint}/v1/traces` }))
  const settingsOf = (attributes: Attributes) => ({ resource: resourceOf(attributes), spanProcessors: [processor] })
  const provider = new NodeTracerProvider(settingsOf({ 'service.name': service, 'service.version': VERSION }))
  provider.register()
  const tracer = provider.getTracer(service)
  // A collector shows which service a span belongs to; of guests the spans are made here. Their agents may have different
  // versions.
  const guestTracer = new BasicTracerProvider(settingsOf({ 'service.name': GUEST_AGENT })).getTracer(GUEST_AGENT)

  setTracing({
    span: (name, work) => (findRecording() ? runSpan(tracer, name, work) : work()),
    continueTrace: (from, operation, work) => continueTrace(tracer, from, operation, work),
    traceparent: () => (findRecording() ? renderTraceparent() : undefined),
    addSpans: (spans) => addMeasured(guestTracer, spans),
  })
  return {
    provider,
    async stop() {
      setTracing(undefined)
      await withTimeout(STOP_LIMIT_MS, provider.shutdown(), 'exporting the last spans').catch((error) =>
        log.warn({ err: error }, 'some spans were not exported'),
      )
    },
  }
}

const resourceOf = (attributes: Attributes) =>
  resourceFromAttributes(attributes).merge(detectResources({ detectors: [envDetector] }))

/** The step under way; undefined outside of a trace, in one that is not sampled, and after the step has ended. */
function findRecording(): Span | undefined {
  const current = trace.getActiveSpan()
  return current?.isRecording() ? current : undefined
}

const runSpan = <T>(tracer: Tracer, name: string, work: () => Promise<T>): Promise<T> =>
  tracer.startActiveSpan(name, (current) => endWith(current, work))

function continueTrace<T>(
  tracer: Tracer,
  traceparent: string,
  { name, sandbox }: Operation,
  work: () => Promise<T>,
): Promise<T> {
  const parent = propagation.extract(ROOT_CONTEXT, { traceparent })
  if (!trace.getSpanContext(parent)) return work()
  const attributes = sandbox === undefined ? {} : { 'warren.sandbox': sandbox }
  return tracer.startActiveSpan(name, { kind: SpanKind.SERVER, attributes }, parent, (current) =>
    endWith(current, work),
  )
}

async function endWith<T>(current: Span, work: () => Promise<T>): Promise<T> {
  try {
    return await work()
  } catch (error) {
    const message = errorText(error).slice(0, ERROR_MAX_CHARACTERS)
    current.setStatus({ code: SpanStatusCode.ERROR, message })
    throw error
  } finally {
    current.end()
  }
}

function renderTraceparent(): string | undefined {
  const carrier: { traceparent?: string } = {}
  propagation.inject(context.active(), carrier)
  return carrier.traceparent
}

function addMeasured(tracer: Tracer, [first, ...others]: MeasuredSpan[]): void {
  if (!first || !findRecording()) return
  const parent = addOne(tracer, first, context.active())
  const inside = trace.setSpan(context.active(), parent)
  for (const other of others) addOne(tracer, other, inside)
}

function addOne(tracer: Tracer, { name, startedAt, endedAt }: MeasuredSpan, parent: typeof ROOT_CONTEXT): Span {
  const added = tracer.startSpan(name, { startTime: performance.timeOrigin + startedAt }, parent)
  added.end(performance.timeOrigin + endedAt)
  return added
}

/** OpenTelemetry drops spans that a collector does not accept. The operator should know, but not for each batch. */
function reportExportErrors(endpoint: string, log: Pick<Log, 'warn'>): void {
  let reportedAt = Number.NEGATIVE_INFINITY
  const report = (message: string) => {
    if (performance.now() - reportedAt < REPORT_EVERY_MS) return
    reportedAt = performance.now()
    log.warn({ endpoint, reason: message.slice(0, ERROR_MAX_CHARACTERS) }, 'failed to export spans')
  }
  const ignore = () => {}
  diag.setLogger({ error: report, warn: ignore, info: ignore, debug: ignore, verbose: ignore }, DiagLogLevel.ERROR)
}
