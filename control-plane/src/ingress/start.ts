/** Starts the ingress of this process from its settings. From then on sandbox views contain ingress URLs. */
import { ConfigError } from '@warren/kit/config'
import type { Deps } from '../deps.ts'
import { type Certificates, openLocalAuthority, openProvidedCertificate } from './certificates.ts'
import type { IngressLimits } from './client-connections.ts'
import { type IngressServer, startIngressServer } from './server.ts'

export async function startIngress(deps: Deps, limits?: IngressLimits): Promise<IngressServer> {
  const server = await startIngressServer(deps, await openCertificates(deps), limits)
  deps.ingressAddress.setPort(server.port)
  return server
}

function openCertificates({ config, log, ingressAddress }: Deps): Promise<Certificates> {
  const { ingressCert, ingressKey, ingressCaDir } = config
  if ((ingressCert === '') !== (ingressKey === '')) {
    throw new ConfigError('WARREN_INGRESS_CERT and WARREN_INGRESS_KEY must be set together')
  }
  if (ingressCert !== '') return openProvidedCertificate(ingressCert, ingressKey, log)
  return openLocalAuthority(ingressCaDir, ingressAddress.domain)
}
