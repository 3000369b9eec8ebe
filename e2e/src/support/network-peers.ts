/** Sandboxes that may or may not reach each other, the table of who should, and the look at who does (peer.pl). */
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { until } from '@warren/kit/testing/until'
import { readDnsResponse } from './attacker.ts'
import { createSandbox, requestOk, runShell } from './sandboxes.ts'
import type { VmInstance } from './vm-instance.ts'

const PROGRAM = readFileSync(path.join(import.meta.dirname, 'peer.pl'), 'utf8')
/** Execs at the same time: the machine has few cores. */
const AT_ONCE = 4

/** `it` is the box as its owner sees it; `networks` are names that carry the owner's. */
export type Peer = { warren: VmInstance; id: string; name: string; ip: string; networks: Set<string> }

export async function createPeer(warren: VmInstance, owner: string, name: string, networks: string[]): Promise<Peer> {
  const body = { name, egress: ['none'], networks: networks.map((id) => ({ id })) }
  const { id, ip } = await createSandbox(warren, body)
  const neighbour = { warren, id, name, ip: ip!, networks: new Set(networks.map((one) => `${owner} ${one}`)) }
  await requestOk(warren, 'POST', `/sandboxes/${id}/processes`, { cmd: 'perl', args: ['-e', PROGRAM, 'serve', name] })
  await until(async () => /:1B58 /.test(await runShell(warren, id, 'cat /proc/net/udp')), 'it listens')
  return neighbour
}

export const shareNetwork = (one: Peer, other: Peer): boolean => !one.networks.isDisjointFrom(other.networks)

/** Opens a flow to a neighbour; gives how much has come through it. */
export async function openFlow(from: Peer, to: Peer): Promise<() => Promise<number>> {
  const file = `/tmp/from-${to.name}`
  const args = ['-e', PROGRAM, 'hold', to.ip, file]
  await requestOk(from.warren, 'POST', `/sandboxes/${from.id}/processes`, { cmd: 'perl', args })
  const count = async () => Number(await runShell(from.warren, from.id, `cat ${file} 2>/dev/null | wc -c`))
  await until(async () => (await count()) > 0, 'the flow is open')
  return count
}

let round = 0

/** Everybody tries everybody, by address and by name. What the others heard is compared as well: no packet gets there. */
export async function checkAllPairs(all: readonly Peer[]): Promise<void> {
  round++
  const found = await forEachPeer(all, (one) => probe(one, all))
  for (const [index, one] of all.entries()) {
    const peers = all.filter((other) => other !== one && shareNetwork(one, other))
    assert.deepEqual(found[index]!.peers, sorted(peers.map(({ ip, name }) => `${ip} ${name}`)), `${one.name} reaches`)
    const names = Object.fromEntries(
      [...new Set(all.map(({ name }) => name))].map((name) => {
        const ips = all.filter((other) => other.name === name && shareNetwork(one, other)).map(({ ip }) => ip)
        return [name, ips.length === 0 ? 'NXDOMAIN' : ['NOERROR', ...ips.sort()].join(' ')]
      }),
    )
    assert.deepEqual(found[index]!.names, names, `what ${one.name} is told of names`)
  }
  const heard = await forEachPeer(all, (one) =>
    runShell(one.warren, one.id, `grep "^round-${round} " /tmp/heard | sort -u || true`),
  )
  for (const [index, one] of all.entries()) {
    const peers = all.filter((other) => other !== one && shareNetwork(one, other))
    const expected = sorted(peers.map(({ ip }) => `round-${round} ${ip}`))
    assert.deepEqual(sorted(heard[index]!.split('\n').filter(Boolean)), expected, `${one.name} heard`)
  }
}

async function probe(one: Peer, all: readonly Peer[]) {
  const others = all.filter((other) => other !== one)
  const names = [...new Set(all.map(({ name }) => name))]
  const answers = others.filter((other) => shareNetwork(one, other)).length
  const args = [`round-${round}`, String(answers), others.map(({ ip }) => ip).join(), names.join()]
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
        const [code, ...ips] = readDnsResponse(Buffer.from(bytes!, 'hex'), QUESTION_BYTES + name.length).split(' ')
        return [[name, [code, ...ips.sort()].join(' ')]]
      }),
    ),
  }
}

/** A header, the length of the only label, the end of the name, type and class. */
const QUESTION_BYTES = 12 + 1 + 1 + 4

const sorted = (texts: readonly string[]): string[] => [...texts].sort()

export async function forEachPeer<In, Out>(all: readonly In[], work: (one: In) => Promise<Out>): Promise<Out[]> {
  const results: Out[] = []
  for (let at = 0; at < all.length; at += AT_ONCE)
    results.push(...(await Promise.all(all.slice(at, at + AT_ONCE).map(work))))
  return results
}
