/**
 * What is behind the host names of apps: the sandbox of the deployment that a project serves now. Requests reach it through a
 * tunnel of the control plane's API (docs/decisions/0040-apps-through-tunnels.md).
 *
 * The rows are read for every request, so that a promotion, a pause or a deletion takes effect at once, in every process.
 * Requests for one app that arrive together share a query.
 */
import type { Backend } from '@warren/kit/http-proxy/backend'
import { ProxyError } from '@warren/kit/http-proxy/error'
import { sql } from 'kysely'
import { isRefused, openTunnel } from '../control-plane/tunnel.ts'
import type { Deps } from '../deps.ts'
import type { ProjectStatus } from '../projects/statuses.ts'

export type AppTarget = { name: string }
export type AppUpstream = { sandboxId: string; port: number }

type Route = { status: ProjectStatus; sandbox_id: string | null; port: number | null; is_live: boolean }

export function createAppBackend(deps: Deps): Backend<AppTarget, AppUpstream> {
  const pending = new Map<string, Promise<Route | undefined>>()
  const findRoute = (name: string): Promise<Route | undefined> => {
    const shared = pending.get(name)
    if (shared) return shared
    const query = readRoute(deps, name).finally(() => pending.delete(name))
    pending.set(name, query)
    return query
  }
  return {
    parseHost: (host) => parseAppHost(host, deps.apps.domain),
    keyOf: ({ name }) => name,
    findOwner: async ({ name }) => ((await findRoute(name)) ? name : undefined),
    async resolve({ name }) {
      const route = await findRoute(name)
      if (!route) throw new ProxyError(404, 'Nothing is served here.')
      if (route.status === 'pending' && route.is_live) throw new ProxyError(503, 'This app is paused: it is not paid.')
      if (!route.sandbox_id || !route.port) throw new ProxyError(502, 'No version of this app is ready.')
      return { sandboxId: route.sandbox_id, port: route.port }
    },
    poolName: ({ sandboxId, port }) => `${sandboxId} ${port}`,
    async connect({ sandboxId, port }, signal) {
      try {
        return await openTunnel(deps.controlPlane.access, sandboxId, port, signal)
      } catch (cause) {
        const text = isRefused(cause)
          ? 'This app does not accept connections.'
          : 'This app cannot be reached at the moment.'
        throw new ProxyError(502, text, { cause })
      }
    },
    messages: {
      closed: 'This app closed the connection.',
      invalid: 'This app did not send a valid HTTP response.',
      unreachable: 'This app cannot be reached at the moment.',
    },
  }
}

async function readRoute({ db }: Deps, name: string): Promise<Route | undefined> {
  const { rows } = await sql<Route>`
    select p.status, s.sandbox_id, d.port, p.live_deployment_id is not null as is_live
    from gateway.projects p
    left join gateway.deployments d on d.id = p.live_deployment_id
    left join gateway.sandboxes s on s.deployment_id = d.id and s.role = 'run' and s.attempt = d.attempt
    where lower(p.unique_name) = ${name} and p.deleted_at is null and p.status <> 'deleting'`.execute(db)
  return rows[0]
}

/** `<uniqueName>.<domain>`, in any case, with an optional port and trailing dot. */
export function parseAppHost(host: string | undefined, domain: string): AppTarget | undefined {
  const full = (host ?? '').replace(/:\d+$/, '').replace(/\.$/, '').toLowerCase()
  if (!full.endsWith(`.${domain}`)) return undefined
  const name = full.slice(0, -domain.length - 1)
  return /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/.test(name) ? { name } : undefined
}
