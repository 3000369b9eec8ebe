/** Sandboxes that may or may not reach each other: which pairs should, and which pairs do (peer.pl). */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { until } from '@warren/kit/testing/until'
import { readDnsResponse } from './attacker.ts'
import { createSandbox, requestOk, runShell } from './sandboxes.ts'
import type { VmInstance } from './vm-instance.ts'

const PROGRAM = readFileSync(path.join(import.meta.dirname, 'peer.pl'), 'utf8')
/** Execs at the same time. Few, because test machines have few cores. */
const AT_ONCE = 4

/** `warren` carries the API key of the owner. `networks` holds names with the owner in front, so they are unique. */
export type Peer = { warren: VmInstance; id: string; name: string; ip: string; networks: Set<string> }

export async function createPeer(warren: VmInstance, owner: string, name: string, networks: string[]): Promise<Peer> {
  const body = { name, egress: ['none'], networks: networks.map((id) => ({ id })) }
  const { id, ip } = await createSandbox(warren, body)
  const peer = { warren, id, name, ip: ip!, networks: new Set(networks.map((one) => `${owner} ${one}`)) }
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', PROGRAM, 'serve', name] })
  await until(async () => /:1B58 /.test(await runShell(warren, id, 'cat /proc/net/udp')), 'the peer listens')
  return peer
}

export const shareNetwork = (one: Peer, other: Peer): boolean => !one.networks.isDisjointFrom(other.networks)

/** Opens a flow to a peer; returns a function that counts the bytes received through it. */
export async function openFlow(from: Peer, to: Peer): Promise<() => Promise<number>> {
  const file = `/tmp/from-${to.name}`
  const args = ['-e', PROGRAM, 'hold', to.ip, file]
  await requestOk(from.warren, 'POST', `/sandboxes/${from.id}/processes`, { cmd: 'perl', args })
  const count = async () => Number(await runShell(from.warren, from.id, `cat ${file} 2>/dev/null | wc -c`))
  await until(async () => (await count()) > 0, 'the flow is open')
  return count
}

let round = 0

/**
 * Probes every pair in both directions, by address and by name. Also checks what each peer received, so that not even
 * a packet whose response is dropped may arrive.
 */
export async function checkAllPairs(all: readonly Peer[]): Promise<void> {
  round++
  const probed = await forEachPeer(all, (one) => probe(one, all))
  for (const [index, one] of all.entries()) {
    const peers = all.filter((other) => other !== one && shareNetwork(one, other))
    assert.deepEqual(probed[index]!.peers, sorted(peers.map(({ ip, name }) => `${ip} ${name}`)), `${one.name} reaches`)
    const names = Object.fromEntries(
      [...new Set(all.map(({ name }) => name))].map((name) => {
        const ips = all.filter((other) => other.name === name && shareNetwork(one, other)).map(({ ip }) => ip)
        return [name, ips.length === 0 ? 'NXDOMAIN' : ['NOERROR', ...ips.sort()].join(' ')]
      }),
    )
    assert.deepEqual(probed[index]!.names, names, `names that ${one.name} resolves`)
  }
  const received = await forEachPeer(all, (one) =>
    runShell(one.warren, one.id, `grep "^round-${round} " /tmp/received | sort -u || true`),
  )
  for (const [index, one] of all.entries()) {
    const peers = all.filter((other) => other !== one && shareNetwork(one, other))
    const expected = sorted(peers.map(({ ip }) => `round-${round} ${ip}`))
    assert.deepEqual(sorted(received[index]!.split('\n').filter(Boolean)), expected, `${one.name} received`)
  }
}

async function probe(one: Peer, all: readonly Peer[]) {
  const others = all.filter((other) => other !== one)
  const names = [...new Set(all.map(({ name }) => name))]
  const responses = others.filter((other) => shareNetwork(one, other)).length
  const args = [`round-${round}`, String(responses), others.map(({ ip }) => ip).join(), names.join()]
  const { result } = (await requestOk(one.warren, 'POST', `/sandboxes/${one.id}/exec`, {
    cmd: 'perl',
    args: ['-e', PROGRAM, 'probe', ...args],
  })) as { result: { stdout: string; stderr: string; exit_code: number } }
  assert.equal(result.exit_code, 0, result.stderr)
  const lines = result.stdout.trim().split('\n')
  return {
    peers: sorted(lines.filter((line) => line.startsWith('peer ')).map((line) => line.slice(5))),
    names: Object.fromEntries(
      lines.flatMap((line) => {
        const [, number, bytes] = /^name (\d+) (.*)$/.exec(line) ?? []
        if (number === undefined) return []
        const name = names[Number(number)]!
        const [code, ...ips] = readDnsResponse(Buffer.from(bytes!, 'hex'), QUERY_BYTES + name.length).split(' ')
        return [[name, [code, ...ips.sort()].join(' ')]]
      }),
    ),
  }
}

/** Header, length of the only label, end of the name, type and class; without the label itself. */
const QUERY_BYTES = 12 + 1 + 1 + 4

const sorted = (texts: readonly string[]): string[] => [...texts].sort()

export async function forEachPeer<In, Out>(all: readonly In[], work: (one: In) => Promise<Out>): Promise<Out[]> {
  const results: Out[] = []
  for (let at = 0; at < all.length; at += AT_ONCE)
    results.push(...(await Promise.all(all.slice(at, at + AT_ONCE).map(work))))
  return results
}
