/**
 * The S3 proxy: the process through which guests reach the buckets of their disks. `main.ts SETTINGS`, started by the host agent
 * (../s3-proxy-client.ts).
 *
 * It has the credentials of the buckets, in memory only, and parses what guests send. So it is separate from the host agent and
 * from the egress proxy, uses no FFI, and runs in a jail (../s3-proxy-jail.ts). A sandbox without a mount gets nothing. The
 * process exits when the host agent's channel closes.
 */
import { Socket } from 'node:net'
import { openJsonLines } from '@warren/kit/json-lines'
import { createAddressPolicy } from '@warren/kit/outbound/addresses'
import { createOutboundGuard } from '@warren/kit/outbound/guard'
import { createResolve } from '@warren/kit/outbound/resolve'
import { Value } from 'typebox/value'
import { ignoreTerminalSignals } from '../../rpc/child-channel.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { type Handlers, renderError, serveRequest } from '../../rpc/serve-request.ts'
import {
  CHANNEL_FD,
  type S3ProxyCalls,
  S3ProxyMachine,
  type S3ProxyMessage,
  S3ProxyMounts,
  S3ProxySettings,
} from '../s3-proxy-protocol.ts'
import { Counts } from './counts.ts'
import { DEADLINES, Occupancy } from './limits.ts'
import { Mounts } from './mounts.ts'
import type { ServeDeps } from './serve.ts'
import { type Listener, openListener } from './server.ts'
import { Upstream } from './upstream.ts'

const mounts = new Mounts((answered) => send({ answered }))
const occupancy = new Occupancy()
const counts = new Counts()
let machine: S3ProxyMachine = { nameServers: [], hosts: '', addresses: [] }
let listener: Listener | undefined

ignoreTerminalSignals()
const channel = openJsonLines(new Socket({ fd: CHANNEL_FD }), {
  maxBytes: Number.POSITIVE_INFINITY,
  onMessage: async (request) => send(await serveRequest(handlers, request as RpcRequest)),
  onViolation: () => process.exit(1),
  onClose: () => process.exit(0),
})
try {
  listener = open(Value.Parse(S3ProxySettings, JSON.parse(process.argv[2] ?? '')))
  send({ ready: true })
} catch (error) {
  send({ failed: renderError(error) })
}

function send(message: S3ProxyMessage): void {
  channel.send(message)
}

function open({ address, port, privateCidrs, deadlines: given }: S3ProxySettings): Listener {
  const deadlines = { ...DEADLINES, ...given }
  const resolve = createResolve({ readHosts: async () => machine.hosts, servers: () => machine.nameServers })
  const policy = createAddressPolicy(privateCidrs, () => machine.addresses)
  const deps: ServeDeps = {
    mounts,
    occupancy,
    deadlines,
    counts,
    upstream: new Upstream(createOutboundGuard(privateCidrs, resolve, policy), deadlines, (seconds) =>
      counts.addLatency(seconds),
    ),
    warn: (message) => process.stderr.write(`${message}\n`),
  }
  return openListener(deps, address, port)
}

const handlers: Handlers<S3ProxyCalls> = {
  setMachine(given) {
    machine = Value.Parse(S3ProxyMachine, given)
    return null
  },
  setMounts(message) {
    // Not with the error of the parser, which could quote a secret.
    if (!Value.Check(S3ProxyMounts, message)) throw new Error('the message about mounts is not valid')
    mounts.set(message)
    return null
  },
  async listen() {
    return { port: await listener!.listen() } // It exists before the process is ready.
  },
  removeMounts({ ids }) {
    for (const id of ids) mounts.remove(id)
    listener?.closeStrangers()
    return null
  },
  counts: () => ({
    mounts: mounts.size,
    connections: occupancy.connections,
    inFlight: occupancy.requests,
    ...counts.read(),
  }),
}
