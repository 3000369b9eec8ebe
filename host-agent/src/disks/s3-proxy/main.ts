/**
 * The S3 proxy: the process through which guests reach the buckets of their disks. `main.ts SETTINGS`, forked by the host agent
 * (../s3-proxy-client.ts).
 *
 * It has the credentials of the buckets, in memory only, and parses what guests send. So it is separate from the host agent and
 * from the egress proxy, uses no FFI, and gives up root once its socket is open. A sandbox without a mount gets nothing. The
 * process exits when the host agent's channel closes.
 */
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { Value } from 'typebox/value'
import { endWithParent, sendToParent } from '../../rpc/child-channel.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { type Handlers, renderError, serveRequest } from '../../rpc/serve-request.ts'
import { type S3ProxyCalls, type S3ProxyMessage, S3ProxyMounts, S3ProxySettings } from '../s3-proxy-protocol.ts'
import { DEADLINES, Occupancy } from './limits.ts'
import { Mounts } from './mounts.ts'
import type { ServeDeps } from './serve.ts'
import { listen } from './server.ts'
import { Upstream } from './upstream.ts'

const mounts = new Mounts()
const occupancy = new Occupancy()
const requests = new Map<string, number>()

endWithParent()
try {
  const port = await open(Value.Parse(S3ProxySettings, JSON.parse(process.argv[2] ?? '')))
  process.on('message', async (request: RpcRequest) => sendToParent(await serveRequest(handlers, request)))
  sendToParent({ ready: { port } } satisfies S3ProxyMessage)
} catch (error) {
  sendToParent({ failed: renderError(error) } satisfies S3ProxyMessage)
}

async function open(settings: S3ProxySettings): Promise<number> {
  const { address, port, uid, privateCidrs } = settings
  const deadlines = { ...DEADLINES, ...settings.deadlines }
  const deps: ServeDeps = {
    mounts,
    occupancy,
    deadlines,
    upstream: new Upstream(createOutboundGuard(privateCidrs), deadlines),
    count: (operation, status) => {
      const name = JSON.stringify([operation, status])
      requests.set(name, (requests.get(name) ?? 0) + 1)
    },
    warn: (message) => process.stderr.write(`S3 proxy: ${message}\n`),
  }
  const actualPort = await listen(deps, address, port)
  if (uid !== undefined) {
    process.setgroups!([])
    process.setgid!(uid)
    process.setuid!(uid)
  }
  return actualPort
}

const handlers: Handlers<S3ProxyCalls> = {
  setMounts(message) {
    // Not with the error of the parser, which could quote a secret.
    if (!Value.Check(S3ProxyMounts, message)) throw new Error('the message about mounts is not valid')
    mounts.set(message)
    return null
  },
  removeMounts({ ids }) {
    for (const id of ids) mounts.remove(id)
    return null
  },
  counts: () => ({
    mounts: mounts.size,
    connections: occupancy.connections,
    inFlight: occupancy.requests,
    requests: [...requests].map(([name, count]) => {
      const [operation, status] = JSON.parse(name) as [string, number]
      return { operation, status, count }
    }),
  }),
}
