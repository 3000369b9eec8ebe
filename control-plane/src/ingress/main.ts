/** The ingress of this process, by its settings. From then on views say where sandboxes are reached. */
import { ConfigError } from '@warren/kit/config'
import type { Deps } from '../deps.ts'
import { type Certificates, openGiven, openLocal } from './certificates.ts'
import type { IngressLimits } from './clients.ts'
import { type IngressServer, startIngress } from './server.ts'
import { domainName } from './target.ts'

const LOCAL_DOMAIN = 'localhost'

export async function openIngress(deps: Deps, limits?: IngressLimits): Promise<IngressServer> {
  const { config } = deps
  const given = config.ingressDomain !== ''
  if (!given) config.ingressDomain = LOCAL_DOMAIN
  const server = await startIngress(deps, await openCertificates(deps), limits)
  // The port is known only now, where the system chose it.
  if (!given) config.ingressDomain = `${LOCAL_DOMAIN}:${server.port}`
  return server
}

function openCertificates({ config, log }: Deps): Promise<Certificates> {
  const { ingressCert, ingressKey, ingressCaDir } = config
  if ((ingressCert === '') !== (ingressKey === '')) {
    throw new ConfigError('WARREN_INGRESS_CERT and WARREN_INGRESS_KEY belong together')
  }
  if (ingressCert !== '') return openGiven(ingressCert, ingressKey, log)
  return openLocal(ingressCaDir, domainName(config.ingressDomain))
}
