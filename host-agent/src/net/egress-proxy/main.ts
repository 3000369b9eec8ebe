/**
 * The gate: the process that answers sandboxes' questions for names and carries their connections to hosts that rules
 * name. `main.ts SETTINGS`, forked by the host agent (client.ts).
 *
 * It is apart so that traffic does not slow the host agent, and because it reads what guests send: it has no FFI and,
 * once its sockets are open, no privileges. It knows only what it is told; a sandbox it was told nothing of gets
 * nothing. It ends with the host agent's channel.
 */

import type { GateCalls, GateMessage, GateRequest, GateSettings } from '../egress-proxy-protocol.ts'
import { judgeQuestion } from './decide-dns-answer.ts'
import { startDns } from './dns/server.ts'
import { hostUpstreams } from './dns/upstreams.ts'
import { Lookup } from './lookup.ts'
import { proxyShares, startProxy } from './proxy.ts'
import { Known } from './sandbox.ts'

const settings = JSON.parse(process.argv[2] ?? '') as GateSettings
const sandboxes = new Map<string, Known>()
const find = (ip: string): Known | undefined => sandboxes.get(ip)

process.on('disconnect', () => process.exit(0))
// The terminal's Ctrl-C is for the host agent, which closes the channel when it is done with us.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})

try {
  await open()
  process.on('message', (request: GateRequest) => answer(request))
  say({ ready: true })
} catch (error) {
  const { message, code } = error as NodeJS.ErrnoException
  say({ failed: { message, ...(code === undefined ? {} : { code }) } })
}

async function open(): Promise<void> {
  const { address, ports, uid } = settings
  const fixed = settings.upstreams
  const upstreams = fixed === undefined ? hostUpstreams() : async () => fixed
  const log = { warn: (...words: unknown[]) => process.stderr.write(`gate: ${words.map(String).join(' ')}\n`) }
  await startDns(
    { upstreams, log, judge: (source, ...about) => judgeQuestion(find(source), ...about) },
    address,
    ports.dns,
  )
  const deps = { find, lookup: new Lookup(upstreams), connections: proxyShares() }
  await startProxy(deps, 'http', address, ports.http)
  await startProxy(deps, 'tls', address, ports.tls)
  process.setgroups!([])
  process.setgid!(uid)
  process.setuid!(uid)
}

const calls: GateCalls = {
  setPolicies(policies) {
    for (const { ip, policy } of policies) {
      const known = sandboxes.get(ip)
      if (known === undefined) sandboxes.set(ip, new Known(policy))
      else known.change(policy)
    }
    return null
  },
  forget({ ip }) {
    sandboxes.get(ip)?.close()
    sandboxes.delete(ip)
    return null
  },
  report: ({ ip }) => sandboxes.get(ip)?.report() ?? { decisions: [], flows: [] },
}

function answer({ id, method, params }: GateRequest): void {
  say({ id, result: (calls[method] as (params: unknown) => unknown)(params) })
}

/** Nobody listens any more when the channel is closed; the process is about to end. */
function say(message: GateMessage): void {
  if (process.connected) process.send!(message, undefined, undefined, () => {})
}
