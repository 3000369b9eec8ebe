/** Traces of requests to the API, if OTEL_EXPORTER_OTLP_ENDPOINT is set. kit/src/span.ts explains how they continue. */
import type { Log } from '@warren/kit/log'
import type { FastifyPluginCallback } from 'fastify'

export type Tracing = { plugin: FastifyPluginCallback; stop(): Promise<void> }

/** Loads OpenTelemetry only if there is an endpoint. */
export async function startTracing(endpoint: string | undefined, log: Pick<Log, 'warn'>): Promise<Tracing | undefined> {
  if (endpoint === undefined) return undefined
  const [{ startTracing: start }, { FastifyOtelInstrumentation }] = await Promise.all([
    import('@warren/kit/tracing'),
    import('@fastify/otel'),
  ])
  const { provider, stop } = start('warren-control-plane', endpoint, log)
  const instrumentation = new FastifyOtelInstrumentation({
    registerOnInitialization: false,
    // The steps that matter are spans of our own.
    instrumentHooks: false,
    instrumentHandler: false,
    requestHook(span, request) {
      span.updateName(`${request.method} ${request.routeOptions.url ?? 'unknown route'}`)
      // Without the query, because one route accepts a credential in it.
      span.setAttribute('url.path', request.url.split('?')[0] ?? '')
    },
  })
  instrumentation.setTracerProvider(provider)
  return { plugin: instrumentation.plugin() as FastifyPluginCallback, stop }
}
