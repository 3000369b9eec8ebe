/** Starts the ingress of this process from its settings. From then on sandbox views contain ingress URLs. */
import { ConfigError } from '@warren/kit/config'
import type { ProxyObserver } from '@warren/kit/http-proxy/backend'
import { type Certificates, openLocalAuthority, openProvidedCertificate } from '@warren/kit/http-proxy/certificates'
import type { ProxyLimits } from '@warren/kit/http-proxy/client-connections'
import { startProxyServer } from '@warren/kit/http-proxy/server'
import type { Deps } from '../deps.ts'
import type { IngressMetrics } from '../observe/ingress-metrics.ts'
import { createIngressBackend } from './backend.ts'
import { createIngressStreams } from './streams.ts'

export type IngressServer = { port: number; close(): Promise<void> }

export async function startIngress(deps: Deps, limits?: ProxyLimits): Promise<IngressServer> {
  const { config, log, ingressAddress } = deps
  const { ingress: metrics } = deps.metrics
  const streams = createIngressStreams(deps)
  const server = await startProxyServer({
    backend: createIngressBackend(deps, streams),
    observer: observe(metrics),
    log,
    certificates: await openCertificates(deps),
    domain: ingressAddress.domain,
    host: config.ingressHost || config.host,
    port: config.ingressPort,
    trustedProxies: config.trustedProxies,
    rateLimitPerMinute: config.ingressRateLimitPerMinute,
    limits,
  })
  const updateMetrics = () => {
    const { clients, idle } = server.counts()
    server.countBytes()
    metrics.connections.set({ side: 'client' }, clients)
    metrics.connections.set({ side: 'sandbox' }, streams.count)
    metrics.connections.set({ side: 'kept' }, idle)
  }
  metrics.sources.add(updateMetrics)
  ingressAddress.setPort(server.port)
  return {
    port: server.port,
    async close() {
      metrics.sources.delete(updateMetrics)
      streams.close()
      await server.close()
    },
  }
}

const observe = (metrics: IngressMetrics): ProxyObserver => ({
  countRequest: (outcome) => metrics.requests.inc({ outcome }),
  countBytes: (direction, bytes) => metrics.bytes.inc({ direction }, bytes),
  startUpstream() {
    const stop = metrics.upstream.startTimer()
    return (connection) => void stop({ connection })
  },
})

function openCertificates({ config, log, ingressAddress }: Deps): Promise<Certificates> {
  const { ingressCert, ingressKey, ingressCaDir } = config
  if ((ingressCert === '') !== (ingressKey === '')) {
    throw new ConfigError('WARREN_INGRESS_CERT and WARREN_INGRESS_KEY must be set together')
  }
  if (ingressCert !== '') return openProvidedCertificate(ingressCert, ingressKey, log)
  return openLocalAuthority(ingressCaDir, ingressAddress.domain)
}
