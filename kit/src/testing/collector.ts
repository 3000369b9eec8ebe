/** For tests: an OpenTelemetry collector that keeps the spans it receives. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'

export type ReceivedSpan = {
  traceId: string
  spanId: string
  /** Empty for the first span of a trace. */
  parentSpanId: string
  name: string
  service: string
  /** Empty where the service has none. */
  version: string
  startMs: number
  endMs: number
}
export type Collector = { url: string; spans: ReceivedSpan[]; close(): void }

type Attribute = { key: string; value: { stringValue?: string } }
type OtlpSpan = Omit<ReceivedSpan, 'service' | 'version' | 'startMs' | 'endMs'> & {
  startTimeUnixNano: string
  endTimeUnixNano: string
}
type OtlpTraces = {
  resourceSpans: { resource: { attributes: Attribute[] }; scopeSpans: { spans: OtlpSpan[] }[] }[]
}

export async function startCollector(): Promise<Collector> {
  const spans: ReceivedSpan[] = []
  const server = createServer(async (request, response) => {
    if (request.url === '/v1/traces') spans.push(...parseTraces(JSON.parse(await text(request))))
    response.writeHead(200, { 'content-type': 'application/json' }).end('{}')
  })
  server.listen(0, '127.0.0.1')
  await once(server, 'listening')
  const close = () => {
    server.close()
    server.closeAllConnections()
  }
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, spans, close }
}

const parseTraces = ({ resourceSpans }: OtlpTraces): ReceivedSpan[] =>
  resourceSpans.flatMap(({ resource, scopeSpans }) => {
    const find = (name: string) => resource.attributes.find(({ key }) => key === name)?.value.stringValue ?? ''
    const origin = { service: find('service.name'), version: find('service.version') }
    return scopeSpans.flatMap(({ spans }) => spans.map((span) => toReceived(origin, span)))
  })

const toReceived = (origin: Pick<ReceivedSpan, 'service' | 'version'>, span: OtlpSpan): ReceivedSpan => ({
  traceId: span.traceId,
  spanId: span.spanId,
  parentSpanId: span.parentSpanId ?? '',
  name: span.name,
  ...origin,
  startMs: Number(span.startTimeUnixNano) / 1e6,
  endMs: Number(span.endTimeUnixNano) / 1e6,
})
