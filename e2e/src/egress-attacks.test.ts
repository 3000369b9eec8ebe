/**
 * What a program in a real guest with an allowlist tries, and what gets through. Each attempt is a row; the table is
 * printed. What the internet of the test heard is compared as well: nothing may reach it that is not meant to.
 */
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { attack, dnsQuery, frames, NO_RESPONSE } from './support/attacker.ts'
import { ADDRESSES, checkOutcome, NAMES, RULES, toSandbox, toThisHost, WEB } from './support/egress-attempts.ts'
import {
  Internet,
  moveToIsolatedMachine,
  PRIVATE_HOSTS,
  PUBLIC_HOST,
  RULED,
  runCommand,
  SHOP,
  UPLINK,
} from './support/isolated-machine.ts'
import {
  arpClaim,
  type Cable,
  ipv4,
  ipv6,
  overIpv4,
  overIpv6,
  type Packet,
  PROTOCOL,
  ping,
  pongBytes,
  pongsIn,
  udp,
} from './support/packets.ts'
import { createSandbox, requestOk, runShell, type SandboxView } from './support/sandboxes.ts'
import { cannotRunVms, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
const internet = cannotRunVms ? (undefined as never) : await Internet.start()
const API_PORT = 8080
const warren = cannotRunVms
  ? (undefined as never)
  : await startVmInstance({
      WARREN_HOST: '0.0.0.0',
      WARREN_PORT: String(API_PORT),
      WARREN_BASE_URL: `http://127.0.0.1:${API_PORT}`,
      WARREN_EGRESS_PRIVATE_CIDRS: '172.20.0.0/16',
    })

let anna: SandboxView
let berta: SandboxView
let cable: Cable

describe('a guest with an allowlist', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  before(async () => {
    anna = await createSandbox(warren, { egress: RULES })
    berta = await createSandbox(warren)
    // Whoever asks for a name has asked for its gateway first.
    await attack(warren, anna.id, [dnsQuery('shop.example')])
    const mac = /172\.30\.0\.1 .*?((?:[0-9a-f]{2}:){5}[0-9a-f]{2})/.exec(
      await runShell(warren, anna.id, 'cat /proc/net/arp'),
    )
    cable = { gateway: mac![1]!, own: await runShell(warren, anna.id, 'cat /sys/class/net/eth0/address') }
  })

  test('every way out that was tried, and what got through', async (t) => {
    const rows = [...WEB, ...ADDRESSES, ...NAMES, ...toThisHost(API_PORT), ...toSandbox(berta.ip!)]

    const outcomes = await attack(
      warren,
      anna.id,
      rows.map(([, attempt]) => attempt),
    )

    const judged = rows.map((row, index) => checkOutcome(row, outcomes[index]!))
    for (const { line } of judged) t.diagnostic(line)
    assert.deepEqual(
      judged.filter(({ passes }) => !passes).map(({ line }) => line),
      [],
    )
  })

  test('the internet heard only what was meant for it', async () => {
    await heard('ruled', 'quic-ruled')
    const meant = [
      /^http 198\.18\.6\.6 as (shop\.example|SHOP\.Example\.|xn--bcher-kva\.example|plain\.example|mixed\.example)$/,
      /^http 198\.18\.6\.7 as a\.b\.wild\.example$/,
      /^tls 198\.18\.6\.6$/,
      /^(quic-)?ruled from /,
      /^asked (shop|plain|xn--bcher-kva|rebind|metadata|mixed|host)\.example 1$/,
      /^asked a\.b\.wild\.example 1$/,
    ]

    assert.deepEqual(
      (await internet.seen()).filter((one) => !meant.some((pattern) => pattern.test(one))),
      [],
    )
  })

  test('datagrams with every kind of false sender, stamp and destination', async (t) => {
    const own = { from: '172.30.0.2', to: RULED[0] }
    const tried: [what: string, text: string, packet: Omit<Packet, 'body'>, arrives: boolean, port?: number][] = [
      ['its own address', 'own', own, true],
      ['to an allowed port', 'port', { ...own, to: RULED[1] }, true],
      ['to another port there', 'other-port', { ...own, to: RULED[1] }, false, 443],
      ['where no rule leads', 'no-rule', { ...own, to: PUBLIC_HOST }, false],
      ["from another sandbox's address", 'as-berta', { ...own, from: berta.ip! }, false],
      ['from its own outer address', 'as-outer', { ...own, from: anna.ip! }, false],
      ['from its gateway', 'as-gateway', { ...own, from: '172.30.0.1' }, false],
      ['from its host', 'as-host', { ...own, from: '169.254.1.1' }, false],
      ['from a public address', 'as-public', { ...own, from: SHOP }, false],
      ['from loopback', 'as-loopback', { ...own, from: '127.0.0.1' }, false],
      ['stamped for the proxy', 'stamp-1', { ...own, to: PUBLIC_HOST, dscp: 1 }, false],
      ['stamped as granted', 'stamp-2', { ...own, to: PUBLIC_HOST, dscp: 2 }, false],
      ['stamped, to a private address', 'stamp-3', { ...own, to: PRIVATE_HOSTS[0]!, dscp: 2 }, false],
      ['a broadcast', 'broadcast', { ...own, to: '255.255.255.255' }, false],
      ['multicast', 'multicast', { ...own, to: '224.0.0.251' }, false],
    ]

    const texts = await arrived(
      tried.map(([, text, packet, , port = 7777]) => overIpv4(cable, ipv4({ ...packet, body: udp(port, text) }))),
    )

    for (const [what, text, , expected] of tried) {
      t.diagnostic(`${what}: ${texts.includes(text) ? 'arrived' : 'dropped'}`)
      assert.equal(texts.includes(text), expected, what)
    }
  })

  test('in pieces it passes where an address is open whole, and nowhere else', async () => {
    const pieces = (to: string, port: number, id: number, text: string): Buffer[] => {
      const body = udp(port, text.padEnd(40, '.'))
      const common = { from: '172.30.0.2', to, id }
      return [
        overIpv4(cable, ipv4({ ...common, body: body.subarray(0, 16), moreFollow: true })),
        overIpv4(cable, ipv4({ ...common, body: body.subarray(16), offset: 16 })),
      ]
    }
    // A first piece that shows an allowed port, and a second that would write another over it.
    const overlap = { from: '172.30.0.2', to: RULED[1], id: 105 }
    const overlapping = [
      ipv4({ ...overlap, body: udp(7777, 'piece-over'.padEnd(24, '.')).subarray(0, 24), moreFollow: true }),
      ipv4({ ...overlap, body: udp(443, 'piece-over'.padEnd(24, '.')).subarray(8), offset: 8 }),
    ]

    const texts = await arrived([
      ...pieces(RULED[0], 7777, 101, 'piece-whole'),
      ...pieces(RULED[1], 7777, 102, 'piece-port'),
      ...pieces(RULED[1], 443, 103, 'piece-other-port'),
      ...pieces(PUBLIC_HOST, 7777, 104, 'piece-evil'),
      ...overlapping.map((packet) => overIpv4(cable, packet)),
    ])

    assert.deepEqual(
      texts.filter((text) => text.startsWith('piece')),
      ['piece-whole'.padEnd(40, '.')],
    )
  })

  test('ICMP and other protocols follow the address; IPv6 has no way out', async () => {
    const echo = (to: string, number: number) =>
      overIpv4(cable, ipv4({ from: '172.30.0.2', to, protocol: PROTOCOL.ICMP, body: ping(number) }))
    const sctp = ipv4({ from: '172.30.0.2', to: PUBLIC_HOST, protocol: PROTOCOL.SCTP, body: Buffer.alloc(32) })
    const sent = [
      ...[PUBLIC_HOST, RULED[1], SHOP, PRIVATE_HOSTS[0]!, berta.ip!, '169.254.1.1', UPLINK.address].map(echo),
      overIpv4(cable, sctp),
      overIpv6(cable, ipv6(7777, 'six-gateway')),
      overIpv6({ ...cable, gateway: '33:33:00:00:00:01' }, ipv6(7777, 'six-everybody')),
      echo(RULED[0], 99),
    ]

    const [came] = await attack(warren, anna.id, [frames(sent, pongBytes(99))])

    assert.deepEqual(pongsIn(came!), [`${RULED[0]} 99`])
    assert.doesNotMatch(came!, /(^|,)[0-9a-f]{24}86dd/)
    assert.ok(!(await internet.seen()).some((one) => one.startsWith('six')))
    const { decisions } = (await requestOk(warren, 'GET', `/sandboxes/${anna.id}/egress/decisions`)) as {
      decisions: { protocol: string; destination: string }[]
    }
    const told = decisions.map(({ protocol, destination }) => `${protocol} ${destination}`)
    for (const one of [`icmp ${PUBLIC_HOST}`, `sctp ${PUBLIC_HOST}`]) assert.ok(told.includes(one), `${one} in ${told}`)
  })

  test('a false MAC gains nothing, and ARP moves nobody', async () => {
    const false_ = { ...cable, own: '02:00:de:ad:be:ef' }
    // Not its own address: with that it would only send its answers away.
    const addresses = ['172.30.0.1', '169.254.1.1', berta.ip!, UPLINK.address, RULED[0]]
    const packet = (to: string, text: string) => ipv4({ from: '172.30.0.2', to, body: udp(7777, text) })

    const texts = await arrived([
      ...addresses.map((address) => arpClaim(address, false_.own)),
      overIpv4(false_, packet(PUBLIC_HOST, 'mac-evil')),
      overIpv4(false_, packet(RULED[0], 'mac-good')),
    ])

    assert.deepEqual(
      texts.filter((text) => text.startsWith('mac-')),
      ['mac-good'],
    )
    assert.doesNotMatch(runCommand('ip neigh'), /de:ad:be:ef/)
    assert.match(await runShell(warren, berta.id, `curl -s -m 5 --http0.9 http://${PUBLIC_HOST}/`), /^hello/)
  })
})

/** Everything sent, then a ping that must be answered: when it is, the others would have arrived. Gives what arrived. */
async function arrived(sent: readonly Buffer[]): Promise<string[]> {
  const last = overIpv4(
    cable,
    ipv4({ from: '172.30.0.2', to: RULED[0], protocol: PROTOCOL.ICMP, body: ping(lastNumber) }),
  )
  const [came] = await attack(warren, anna.id, [frames([...sent, last], pongBytes(lastNumber++))])
  assert.notEqual(came, NO_RESPONSE)
  return (await internet.seen()).map((one) => one.split(' from ')[0]!)
}
let lastNumber = 1_000

async function heard(...texts: string[]): Promise<void> {
  await until(async () => {
    const seen = await internet.seen()
    return texts.every((text) => seen.some((one) => one.startsWith(`${text} from `)))
  }, `the internet heard ${texts}`)
}
