/** Serves the metrics on a separate port, which need not be reachable like the API. */
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Deps } from '../deps.ts'

export type MetricsServer = { port: number; close(): Promise<void> }

export async function startMetricsServer({ config, metrics, log }: Deps): Promise<MetricsServer> {
  const server = createServer(async (request, response) => {
    if (request.url?.split('?')[0] !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('not found; metrics are at /metrics\n')
      return
    }
    try {
      const text = await metrics.registry.metrics()
      response.writeHead(200, { 'content-type': metrics.registry.contentType }).end(text)
    } catch (error) {
      log.warn({ err: error }, 'failed to render metrics')
      response.writeHead(500).end()
    }
  })
  server.listen(config.metricsPort, config.metricsHost)
  await once(server, 'listening')
  return {
    port: (server.address() as AddressInfo).port,
    async close() {
      const closed = once(server, 'close')
      server.close()
      server.closeAllConnections()
      await closed
    },
  }
}
