/** OpenTelemetry traces, if OTEL_EXPORTER_OTLP_ENDPOINT is set. The other OTEL_* variables work as usual. */
import { FastifyOtelInstrumentation } from '@fastify/otel'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { resourceFromAttributes } from '@opentelemetry/resources'
import { BatchSpanProcessor } from '@opentelemetry/sdk-trace-base'
import { NodeTracerProvider } from '@opentelemetry/sdk-trace-node'
import type { FastifyPluginCallback } from 'fastify'

export type Tracing = { plugin: FastifyPluginCallback; stop(): Promise<void> }

const SERVICE_NAME = 'warren-control-plane'

export function startTracing(endpoint: string | undefined): Tracing | undefined {
  if (endpoint === undefined) return undefined
  const provider = new NodeTracerProvider({
    resource: resourceFromAttributes({ 'service.name': process.env.OTEL_SERVICE_NAME || SERVICE_NAME }),
    spanProcessors: [new BatchSpanProcessor(new OTLPTraceExporter({ url: `${endpoint}/v1/traces` }))],
  })
  provider.register()
  const instrumentation = new FastifyOtelInstrumentation({
    registerOnInitialization: false,
    // Without the query, because one route accepts a credential in it.
    requestHook: (span, request) => void span.setAttribute('url.path', request.url.split('?')[0] ?? ''),
  })
  instrumentation.setTracerProvider(provider)
  return { plugin: instrumentation.plugin() as FastifyPluginCallback, stop: () => provider.shutdown() }
}
