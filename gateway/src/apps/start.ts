/** Serves apps at their host names, http and https on one port. From then on URLs of apps have that port. */
import path from 'node:path'
import { openLocalAuthority, openProvidedCertificate } from '@warren/kit/http-proxy/certificates'
import { type ProxyServer, startProxyServer } from '@warren/kit/http-proxy/server'
import { sql } from 'kysely'
import type { Deps } from '../deps.ts'
import { createAppBackend } from './backend.ts'

export async function startApps(deps: Deps): Promise<ProxyServer> {
  const { config, log } = deps
  const certificates =
    config.appsCert === ''
      ? await openLocalAuthority(config.appsCaDir || path.join(config.dataDir, 'ca'), deps.apps.domain)
      : await openProvidedCertificate(config.appsCert, config.appsKey, log)
  const server = await startProxyServer({
    backend: createAppBackend(deps),
    observer: deps.metrics.apps,
    log,
    certificates,
    domain: deps.apps.domain,
    host: config.appsHost || config.host,
    port: config.appsPort,
    trustedProxies: config.trustedProxies,
    rateLimitPerMinute: config.appsRateLimitPerMinute,
  })
  deps.apps.setPort(server.port)
  await updateUrls(deps)
  return server
}

/** The domain, or the port that the system chose, may differ from the last start. */
async function updateUrls({ db, apps }: Deps): Promise<void> {
  await sql`update gateway.projects set url = 'https://' || lower(unique_name) || '.' || ${apps.urlDomain}::text
    where url is not null and deleted_at is null`.execute(db)
}
