/**
 * The egress proxy: the process that answers the DNS queries of sandboxes and relays their connections to hosts that
 * rules name. `main.ts SETTINGS`, started by the host agent (../egress-proxy-client.ts).
 *
 * It is a separate process so that traffic does not slow the host agent, and because it parses what guests send: it uses
 * no FFI and runs in a jail (../egress-proxy-jail.ts). A sandbox without a policy gets nothing. The process exits when the
 * host agent's channel closes.
 */
import { Socket } from 'node:net'
import { openJsonLines } from '@warren/kit/json-lines'
import { ignoreTerminalSignals } from '../../rpc/child-channel.ts'
import type { RpcRequest } from '../../rpc/protocol.ts'
import { type Handlers, renderError, serveRequest } from '../../rpc/serve-request.ts'
import {
  CHANNEL_FD,
  type EgressProxyCalls,
  type EgressProxyMessage,
  type EgressProxySettings,
} from '../egress-proxy-protocol.ts'
import { countDnsQuery, getCounts } from './counts.ts'
import { decideDnsAnswer } from './decide-dns-answer.ts'
import type { Query } from './dns/message.ts'
import { type DnsDecision, startDns } from './dns/server.ts'
import { Lookup } from './lookup.ts'
import { createConnectionLimiter, startProxy } from './proxy.ts'
import { SandboxEgress } from './sandbox-egress.ts'

const settings = JSON.parse(process.argv[2] ?? '') as EgressProxySettings
const sandboxes = new Map<string, SandboxEgress>()
let { upstreams } = settings
const currentUpstreams = async () => upstreams
const findSandbox = (ip: string): SandboxEgress | undefined => sandboxes.get(ip)

ignoreTerminalSignals()
const channel = openJsonLines(new Socket({ fd: CHANNEL_FD }), {
  maxBytes: Number.POSITIVE_INFINITY,
  onMessage: async (request) => send(await serveRequest(handlers(), request as RpcRequest)),
  onViolation: () => process.exit(1),
  onClose: () => process.exit(0),
})
try {
  await openSockets()
  send({ ready: true })
} catch (error) {
  send({ failed: renderError(error) })
}

function send(message: EgressProxyMessage): void {
  channel.send(message)
}

async function openSockets(): Promise<void> {
  const { address, ports } = settings
  const log = { warn: (...parts: unknown[]) => process.stderr.write(`egress proxy: ${parts.map(String).join(' ')}\n`) }
  await startDns({ upstreams: currentUpstreams, log, decide, perSecond: settings.dnsPerSecond }, address, ports.dns)
  const deps = { findSandbox, lookup: new Lookup(currentUpstreams), limiter: createConnectionLimiter() }
  await startProxy(deps, 'http', address, ports.http)
  await startProxy(deps, 'tls', address, ports.tls)
}

function decide(source: string, query: Query, packet: Buffer): DnsDecision {
  const decision = decideDnsAnswer(findSandbox(source), query, packet)
  countDnsQuery('respond' in decision ? 'local' : 'forwarded')
  return decision
}

function handlers(): Handlers<EgressProxyCalls> {
  return {
    setPolicies(policies) {
      for (const { ip, policy } of policies) {
        const sandbox = sandboxes.get(ip)
        if (sandbox === undefined) sandboxes.set(ip, new SandboxEgress(policy))
        else sandbox.changePolicy(policy)
      }
      return null
    },
    removeSandbox({ ip }) {
      sandboxes.get(ip)?.close()
      sandboxes.delete(ip)
      return null
    },
    setUpstreams(list) {
      upstreams = list
      return null
    },
    report: ({ ip }) => sandboxes.get(ip)?.report() ?? { decisions: [], flows: [] },
    counts: getCounts,
  }
}
