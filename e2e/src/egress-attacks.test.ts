/**
 * What a program in a real guest with an allowlist can try, and what gets through. Each attempt is a row of a table, which
 * is printed. What the test's internet received is checked as well: only allowed traffic may reach it.
 */
import assert from 'node:assert/strict'
import { before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { attack, dnsQuery, frames, NO_RESPONSE } from './support/attacker.ts'
import {
  ADDRESSES,
  attemptsAtSandbox,
  attemptsAtThisHost,
  checkOutcome,
  NAMES,
  RULES,
  WEB,
} from './support/egress-attempts.ts'
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
  arpAnnouncement,
  ipv4,
  ipv6,
  type Link,
  overIpv4,
  overIpv6,
  type Packet,
  PROTOCOL,
  ping,
  pongBytes,
  pongsIn,
  udp,
} from './support/packets.ts'
import {
  createSandbox,
  pauseSandbox,
  requestOk,
  resumeSandbox,
  runShell,
  type SandboxView,
} from './support/sandboxes.ts'
import { cannotRunVms, startUnlessSkipped, startVmInstance, VM_STORIES_LIMIT_MS } from './support/vm-instance.ts'

if (!cannotRunVms) moveToIsolatedMachine()
const internet = await startUnlessSkipped(cannotRunVms, () => Internet.start())
const API_PORT = 8080
const warren = await startUnlessSkipped(cannotRunVms, () =>
  startVmInstance({
    WARREN_HOST: '0.0.0.0',
    WARREN_PORT: String(API_PORT),
    WARREN_BASE_URL: `http://127.0.0.1:${API_PORT}`,
    WARREN_EGRESS_PRIVATE_CIDRS: '172.20.0.0/16',
    WARREN_STANDBY_MIB: '0', // A resume from standby keeps the slot, and with it what the kernel recorded.
  }),
)

let attacker: SandboxView
let neighbour: SandboxView
let link: Link

describe('a guest with an allowlist', { skip: cannotRunVms, timeout: VM_STORIES_LIMIT_MS }, () => {
  before(async () => {
    attacker = await createSandbox(warren, { egress: RULES })
    neighbour = await createSandbox(warren)
    // A DNS query makes the guest resolve the MAC address of its gateway first.
    await attack(warren, attacker.id, [dnsQuery('shop.example')])
    const mac = /172\.30\.0\.1 .*?((?:[0-9a-f]{2}:){5}[0-9a-f]{2})/.exec(
      await runShell(warren, attacker.id, 'cat /proc/net/arp'),
    )
    link = { gateway: mac![1]!, own: await runShell(warren, attacker.id, 'cat /sys/class/net/eth0/address') }
  })

  test('every attempt has its expected outcome', async (t) => {
    const rows = [...WEB, ...ADDRESSES, ...NAMES, ...attemptsAtThisHost(API_PORT), ...attemptsAtSandbox(neighbour.ip!)]

    const outcomes = await attack(
      warren,
      attacker.id,
      rows.map(([, attempt]) => attempt),
    )

    const checked = rows.map((row, index) => checkOutcome(row, outcomes[index]!))
    for (const { line } of checked) t.diagnostic(line)
    assert.deepEqual(
      checked.filter(({ passes }) => !passes).map(({ line }) => line),
      [],
    )
  })

  test('the internet received only allowed traffic', async () => {
    await waitUntilReceived('ruled', 'quic-ruled')
    const allowed = [
      /^http 192\.0\.2\.6 as (shop\.example|SHOP\.Example\.|xn--bcher-kva\.example|plain\.example|mixed\.example)$/,
      /^http 192\.0\.2\.7 as a\.b\.wild\.example$/,
      /^tls 192\.0\.2\.6$/,
      /^(quic-)?ruled from /,
      /^queried (shop|plain|xn--bcher-kva|rebind|metadata|mixed|host)\.example 1$/,
      /^queried a\.b\.wild\.example 1$/,
    ]

    assert.deepEqual(
      (await internet.listReceived()).filter((one) => !allowed.some((pattern) => pattern.test(one))),
      [],
    )
  })

  test('datagrams with a forged sender, DSCP mark or destination are dropped', async (t) => {
    const own = { from: attacker.ip!, to: RULED[0] }
    const attempts: [what: string, text: string, packet: Omit<Packet, 'body'>, arrives: boolean, port?: number][] = [
      ['its own address', 'own', own, true],
      ['to an allowed port', 'port', { ...own, to: RULED[1] }, true],
      ['to another port there', 'other-port', { ...own, to: RULED[1] }, false, 443],
      ['to an address without a rule', 'no-rule', { ...own, to: PUBLIC_HOST }, false],
      ["from another sandbox's address", 'as-neighbour', { ...own, from: neighbour.ip! }, false],
      ['from the address of its boot', 'as-initial', { ...own, from: '172.30.0.2' }, false],
      ['from its gateway', 'as-gateway', { ...own, from: '172.30.0.1' }, false],
      ['from its host', 'as-host', { ...own, from: '169.254.1.1' }, false],
      ['from a public address', 'as-public', { ...own, from: SHOP }, false],
      ['from loopback', 'as-loopback', { ...own, from: '127.0.0.1' }, false],
      ['marked for the proxy', 'stamp-1', { ...own, to: PUBLIC_HOST, dscp: 1 }, false],
      ['marked as allowed', 'stamp-2', { ...own, to: PUBLIC_HOST, dscp: 2 }, false],
      ['marked, to a private address', 'stamp-3', { ...own, to: PRIVATE_HOSTS[0]!, dscp: 2 }, false],
      ['a broadcast', 'broadcast', { ...own, to: '255.255.255.255' }, false],
      ['multicast', 'multicast', { ...own, to: '224.0.0.251' }, false],
    ]

    const texts = await sendAndListReceived(
      attempts.map(([, text, packet, , port = 7777]) => overIpv4(link, ipv4({ ...packet, body: udp(port, text) }))),
    )

    for (const [what, text, , expected] of attempts) {
      t.diagnostic(`${what}: ${texts.includes(text) ? 'arrived' : 'dropped'}`)
      assert.equal(texts.includes(text), expected, what)
    }
  })

  test('fragments pass only to an address that is allowed at every port', async () => {
    const fragments = (to: string, port: number, id: number, text: string): Buffer[] => {
      const body = udp(port, text.padEnd(40, '.'))
      const common = { from: attacker.ip!, to, id }
      return [
        overIpv4(link, ipv4({ ...common, body: body.subarray(0, 16), moreFragments: true })),
        overIpv4(link, ipv4({ ...common, body: body.subarray(16), offset: 16 })),
      ]
    }
    // The first fragment has an allowed port, the second would overwrite it with another.
    const overlap = { from: attacker.ip!, to: RULED[1], id: 105 }
    const overlapping = [
      ipv4({ ...overlap, body: udp(7777, 'piece-over'.padEnd(24, '.')).subarray(0, 24), moreFragments: true }),
      ipv4({ ...overlap, body: udp(443, 'piece-over'.padEnd(24, '.')).subarray(8), offset: 8 }),
    ]

    const texts = await sendAndListReceived([
      ...fragments(RULED[0], 7777, 101, 'piece-whole'),
      ...fragments(RULED[1], 7777, 102, 'piece-port'),
      ...fragments(RULED[1], 443, 103, 'piece-other-port'),
      ...fragments(PUBLIC_HOST, 7777, 104, 'piece-evil'),
      ...overlapping.map((packet) => overIpv4(link, packet)),
    ])

    assert.deepEqual(
      texts.filter((text) => text.startsWith('piece')),
      ['piece-whole'.padEnd(40, '.')],
    )
  })

  test('ICMP and other protocols follow the address rules; IPv6 is dropped', async () => {
    const echo = (to: string, number: number) =>
      overIpv4(link, ipv4({ from: attacker.ip!, to, protocol: PROTOCOL.ICMP, body: ping(number) }))
    const sctp = ipv4({ from: attacker.ip!, to: PUBLIC_HOST, protocol: PROTOCOL.SCTP, body: Buffer.alloc(32) })
    const sent = [
      ...[PUBLIC_HOST, RULED[1], SHOP, PRIVATE_HOSTS[0]!, neighbour.ip!, '169.254.1.1', UPLINK.address].map(echo),
      overIpv4(link, sctp),
      overIpv6(link, ipv6(7777, 'six-gateway')),
      overIpv6({ ...link, gateway: '33:33:00:00:00:01' }, ipv6(7777, 'six-multicast')),
      echo(RULED[0], 99),
    ]

    const [received] = await attack(warren, attacker.id, [frames(sent, pongBytes(99))])

    assert.deepEqual(pongsIn(received!), [`${RULED[0]} 99`])
    assert.doesNotMatch(received!, /(^|,)[0-9a-f]{24}86dd/)
    assert.ok(!(await internet.listReceived()).some((one) => one.startsWith('six')))
    const reported = await listRefused()
    for (const one of [`icmp ${PUBLIC_HOST}`, `sctp ${PUBLIC_HOST}`])
      assert.ok(reported.includes(one), `${one} in ${reported}`)
  })

  test('a forged MAC address gains nothing, and forged ARP replies are ignored', async () => {
    const forged = { ...link, own: '02:00:de:ad:be:ef' }
    // Without its own address: announcing that would only redirect its own responses.
    const addresses = ['172.30.0.1', '169.254.1.1', neighbour.ip!, UPLINK.address, RULED[0]]
    const packet = (to: string, text: string) => ipv4({ from: attacker.ip!, to, body: udp(7777, text) })

    const texts = await sendAndListReceived([
      ...addresses.map((address) => arpAnnouncement(address, forged.own)),
      overIpv4(forged, packet(PUBLIC_HOST, 'mac-evil')),
      overIpv4(forged, packet(RULED[0], 'mac-good')),
    ])

    assert.deepEqual(
      texts.filter((text) => text.startsWith('mac-')),
      ['mac-good'],
    )
    assert.doesNotMatch(runCommand('ip neigh'), /de:ad:be:ef/)
    assert.match(await runShell(warren, neighbour.id, `curl -s -m 5 --http0.9 http://${PUBLIC_HOST}/`), /^hello/)
  })

  test('what was refused is still reported after a pause', async () => {
    const before = new Set(await listRefused())

    await pauseSandbox(warren, attacker.id)
    await resumeSandbox(warren, attacker.id)

    assert.ok(before.size > 0)
    assert.deepEqual([...before.difference(new Set(await listRefused()))], [])
  })
})

async function listRefused(): Promise<string[]> {
  const { decisions } = (await requestOk(warren, 'GET', `/sandboxes/${attacker.id}/egress/decisions`)) as {
    decisions: { protocol: string; destination: string }[]
  }
  return decisions.map(({ protocol, destination }) => `${protocol} ${destination}`)
}

/**
 * Sends the frames and then a ping that must be answered: by then everything else would have arrived. Returns what the
 * internet received.
 */
async function sendAndListReceived(sent: readonly Buffer[]): Promise<string[]> {
  const last = overIpv4(
    link,
    ipv4({ from: attacker.ip!, to: RULED[0], protocol: PROTOCOL.ICMP, body: ping(lastNumber) }),
  )
  const [received] = await attack(warren, attacker.id, [frames([...sent, last], pongBytes(lastNumber++))])
  assert.notEqual(received, NO_RESPONSE)
  return (await internet.listReceived()).map((one) => one.split(' from ')[0]!)
}
let lastNumber = 1_000

async function waitUntilReceived(...texts: string[]): Promise<void> {
  await until(async () => {
    const received = await internet.listReceived()
    return texts.every((text) => received.some((one) => one.startsWith(`${text} from `)))
  }, `the internet has received ${texts}`)
}
