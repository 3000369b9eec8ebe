/** Serves the metrics of this process and of the hosts on a separate port, which need not be reachable like the API. */

import { once } from 'node:events'
import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import type { Deps } from '../deps.ts'
import { renderHostMetrics } from './host-metrics.ts'

export async function startOperatorServer(
  deps: Deps,
  options: { host: string; port: number },
): Promise<{ url: string; close(): Promise<void> }> {
  const server = createServer(async (request, response) => {
    const path = request.url?.split('?')[0]
    if (path !== '/metrics') {
      response.writeHead(404, { 'content-type': 'text/plain' }).end('not found; metrics are at /metrics\n')
      return
    }
    try {
      const { registry } = deps.metrics
      const texts = await Promise.all([registry.metrics(), renderHostMetrics(deps)])
      response.writeHead(200, { 'content-type': registry.contentType }).end(texts.join('\n'))
    } catch {
      response.writeHead(500).end()
    }
  })
  server.listen(options.port, options.host)
  await once(server, 'listening')
  const { address, family, port } = server.address() as AddressInfo
  return { url: `http://${family === 'IPv6' ? `[${address}]` : address}:${port}`, close: () => closeServer(server) }
}

async function closeServer(server: Server): Promise<void> {
  const closed = once(server, 'close')
  server.close()
  server.closeAllConnections()
  await closed
}
