/** What is behind the host names of the ingress: ports of sandboxes, reached through their host. */
import type { Backend } from '@warren/kit/http-proxy/backend'
import type { Deps } from '../deps.ts'
import { parseHostname, type Target } from './hostname.ts'
import type { IngressStreams } from './streams.ts'
import { connectUpstream, isReachable, resolveUpstream, type Upstream } from './upstream.ts'

export function createIngressBackend(deps: Deps, streams: IngressStreams): Backend<Target, Upstream> {
  return {
    parseHost: (host) => parseHostname(host, deps.ingressAddress.domain),
    keyOf: ({ id, port }) => `${id} ${port}`,
    async findOwner({ id }) {
      const found = await deps.loaders.sandboxVersion(id)
      return found && isReachable(found.row) ? id : undefined
    },
    resolve: (target, signal) => resolveUpstream(deps, target, signal),
    // A pause, a resume, a change of `ingress_enabled`, any write to the row changes the version.
    poolName: ({ id, port, version }) => `${id} ${port} ${version}`,
    async connect(upstream, signal) {
      const stream = await connectUpstream(deps, upstream, signal)
      streams.add(upstream.id, stream)
      return stream
    },
    messages: {
      closed: 'The program in this sandbox closed the connection.',
      invalid: 'The program in this sandbox did not send a valid HTTP response.',
      unreachable: 'This sandbox cannot be reached at the moment.',
    },
  }
}
