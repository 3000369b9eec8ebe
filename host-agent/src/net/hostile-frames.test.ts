/** Frames of a guest with its own driver: spoofed addresses, fragments, other protocols, ARP, IPv6. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { GUEST_MAC, netnsName } from './names.ts'
import {
  arpReply,
  arpRequest,
  ETHER,
  ether,
  ipv4,
  type Packet,
  PROTOCOL,
  parseEchoReplies,
  ping,
  udp,
} from './testing/frames.ts'
import { PRIVATE_HOSTS, PUBLIC_HOST, runLine, skipReason } from './testing/host.ts'
import { RULED, SHOP } from './testing/internet-names.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const [WHOLE, PORT] = RULED as [string, string]
const ANNA = '100.64.0.10'
const OPEN = '100.64.0.11'
const SPOOFED_MAC = '02:00:de:ad:be:ef'

let testNet: TestNetwork
let anna: Sandbox
let berta: Sandbox

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
    anna = await testNet.addSandbox(ANNA, withRules([WHOLE, `${PORT}:7777`, 'shop.example']))
    berta = await testNet.addSandbox(OPEN)
  })
  after(() => testNet?.close())
}

type Attempt = [tried: string, packet: Packet, arrives: boolean]
const datagram = (text: string, to = WHOLE, port = 7777): Packet => ({
  from: ANNA,
  to,
  protocol: PROTOCOL.UDP,
  body: udp(5000, port, text),
})
const frame = (packet: Packet, from = GUEST_MAC) => ether({ to: anna.gatewayMac, from, body: ipv4(packet) })

/** Sends the frames and then one that must arrive: once it has, the others would have arrived too. */
async function listArrived(frames: readonly string[], last: string): Promise<string[]> {
  await anna.guest.inject([...frames, frame(datagram(last))])
  await until(async () => (await testNet.internet.received()).some((one) => one.startsWith(`${last} `)))
  return (await testNet.internet.received()).map((one) => one.split(' from ')[0]!)
}

test('only datagrams with the own source address to allowed destinations arrive', { skip: skipReason }, async (t) => {
  const attempts: Attempt[] = [
    ['its own address', datagram('own'), true],
    ['a port rule', datagram('port', PORT), true],
    ['another port of it', datagram('other-port', PORT, 443), false],
    ['no rule', datagram('no-rule', PUBLIC_HOST), false],
    ["another sandbox's address", { ...datagram('as-berta'), from: OPEN }, false],
    ['the address of its boot', { ...datagram('as-initial'), from: '172.30.0.2' }, false],
    ['the gateway’s address', { ...datagram('as-gateway'), from: '172.30.0.1' }, false],
    ['the host’s address', { ...datagram('as-host'), from: '169.254.1.1' }, false],
    ['a public address', { ...datagram('as-public'), from: SHOP }, false],
    ['loopback', { ...datagram('as-loopback'), from: '127.0.0.1' }, false],
    ['marked for the proxy', { ...datagram('mark-1', PUBLIC_HOST), dscp: 1 }, false],
    ['marked as granted', { ...datagram('mark-2', PUBLIC_HOST), dscp: 2 }, false],
    ['marked as granted, to a private address', { ...datagram('mark-3', PRIVATE_HOSTS[0]!), dscp: 2 }, false],
    ['a broadcast', datagram('broadcast', '255.255.255.255'), false],
    ['multicast', datagram('multicast', '224.0.0.251'), false],
  ]

  const texts = await listArrived(
    attempts.map(([, packet]) => frame(packet)),
    'last-1',
  )

  for (const [tried, packet, expected] of attempts) {
    const text = packet.body.subarray(8).toString()
    t.diagnostic(`${tried}: ${texts.includes(text) ? 'arrived' : 'dropped'}`)
    assert.equal(texts.includes(text), expected, tried)
  }
})

test('fragments pass only to an address that is allowed on all ports', { skip: skipReason }, async () => {
  const whole = 'w'.repeat(40)
  const fragments = (to: string, port: number, id: number, text = whole): string[] => {
    const body = udp(5000, port, text)
    const common = { from: ANNA, to, protocol: PROTOCOL.UDP, id }
    return [
      frame({ ...common, body: body.subarray(0, 16), moreFragments: true }),
      frame({ ...common, body: body.subarray(16), offset: 16 }),
    ]
  }
  // The first fragment has an allowed port; the second overlaps it with another port.
  const overlapping = (id: number) => {
    const common = { from: ANNA, to: PORT, protocol: PROTOCOL.UDP, id }
    return [
      frame({ ...common, body: udp(5000, 7777, 'o'.repeat(24)).subarray(0, 24), moreFragments: true }),
      frame({ ...common, body: udp(5000, 443, 'o'.repeat(24)).subarray(8), offset: 8 }),
    ]
  }

  const texts = await listArrived(
    [
      ...fragments(WHOLE, 7777, 1, `a${whole}`),
      ...fragments(PORT, 7777, 2, `b${whole}`),
      ...fragments(PORT, 443, 3, `c${whole}`),
      ...fragments(PUBLIC_HOST, 7777, 4, `d${whole}`),
      ...overlapping(5),
      // A fragment so small that the port would be in the next one.
      frame({ from: ANNA, to: PORT, protocol: PROTOCOL.UDP, id: 6, body: Buffer.alloc(0), moreFragments: true }),
    ],
    'last-2',
  )

  assert.deepEqual(
    texts.filter((text) => /^[a-do]w*/.test(text) && text.length > 20),
    [`a${whole}`],
  )
})

test('ICMP and other protocols are allowed by address', { skip: skipReason }, async () => {
  const echo = (to: string, number: number) => frame({ from: ANNA, to, protocol: PROTOCOL.ICMP, body: ping(number) })

  await anna.guest.inject([
    echo(PUBLIC_HOST, 1),
    echo(PORT, 2),
    echo(SHOP, 3),
    echo(PRIVATE_HOSTS[0]!, 4),
    echo(OPEN, 5),
    echo('169.254.1.1', 6),
    frame({ from: ANNA, to: PUBLIC_HOST, protocol: PROTOCOL.SCTP, body: Buffer.alloc(32) }),
    echo(WHOLE, 7),
  ])

  await until(async () => parseEchoReplies(await anna.guest.received()).some(({ number }) => number === 7))
  assert.deepEqual(parseEchoReplies(await anna.guest.received()), [{ from: WHOLE, number: 7 }])
  const { decisions } = await testNet.network.slots.report(anna.slot)
  const reported = decisions.map(({ destination, protocol }) => `${protocol} ${destination}`)
  for (const one of [`icmp ${PUBLIC_HOST}`, `sctp ${PUBLIC_HOST}`])
    assert.ok(reported.includes(one), `${one} in ${reported}`)
})

test('a spoofed MAC address gains nothing, and ARP replies redirect no traffic', { skip: skipReason }, async () => {
  const replies = ['172.30.0.1', '169.254.1.1', OPEN, '172.30.0.2', WHOLE].map((address) =>
    ether({ to: 'ff:ff:ff:ff:ff:ff', from: SPOOFED_MAC, type: ETHER.ARP, body: arpReply(address, SPOOFED_MAC) }),
  )
  const before = await runLine('ip neigh')

  const texts = await listArrived(
    [...replies, frame(datagram('mac-evil', PUBLIC_HOST), SPOOFED_MAC), frame(datagram('mac-good'), SPOOFED_MAC)],
    'last-3',
  )

  assert.deepEqual(
    texts.filter((text) => text.startsWith('mac-')),
    ['mac-good'],
  )
  assert.equal(await runLine('ip neigh'), before)
  assert.doesNotMatch(await runLine(`ip -n ${netnsName(testNet.network.instance, berta.slot)} neigh`), /de:ad:be:ef/)
  assert.match((await berta.guest.probe({ tcp: PUBLIC_HOST, port: 80 }))[0]!, /^hello/)
})

test('ARP in the names of others adds nothing to the table of neighbours', { skip: skipReason }, async () => {
  const namespace = netnsName(testNet.network.instance, anna.slot)
  const ask = (sender: string) =>
    ether({
      to: 'ff:ff:ff:ff:ff:ff',
      from: GUEST_MAC,
      type: ETHER.ARP,
      body: arpRequest(sender, GUEST_MAC, '172.30.0.1'),
    })
  const askTagged = (sender: string) => {
    const body = Buffer.concat([Buffer.from('00000806', 'hex'), arpRequest(sender, GUEST_MAC, '172.30.0.1')])
    return ether({ to: 'ff:ff:ff:ff:ff:ff', from: GUEST_MAC, type: ETHER.VLAN, body })
  }
  const before = await runLine(`ip -n ${namespace} neigh`)
  const forged = Array.from({ length: 150 }, (_, number) => `100.64.7.${number + 1}`)

  const questions = [...forged, OPEN, '172.30.0.2', '169.254.1.1', ANNA]
  await listArrived([...forged.map(askTagged), ...questions.map(ask)], 'last-arp')

  assert.match(before, new RegExp(`^${ANNA} dev tap0 lladdr ${GUEST_MAC} PERMANENT`, 'm'))
  assert.equal(await runLine(`ip -n ${namespace} neigh`), before)
  const answers = (await anna.guest.received()).filter(
    (frame) => Number.parseInt(frame.slice(24, 28), 16) === ETHER.ARP,
  )
  assert.ok(answers.length > 0, 'the guest itself gets an answer')
})

test('IPv6 packets do not leave', { skip: skipReason }, async () => {
  const header = Buffer.alloc(40)
  header.writeUInt8(0x60, 0)
  header.writeUInt16BE(12, 4)
  header.writeUInt8(PROTOCOL.UDP, 6)
  header.writeUInt8(64, 7)
  Buffer.from('fe80000000000000505400fffe000001', 'hex').copy(header, 8)
  Buffer.from('20010db8000000000000000000000001', 'hex').copy(header, 24)
  const packet = Buffer.concat([header, udp(5000, 7777, 'six!')])
  const solicitation = Buffer.from(`333300000002${GUEST_MAC.replaceAll(':', '')}86dd`, 'hex').toString('hex')

  const texts = await listArrived(
    [
      ether({ to: anna.gatewayMac, from: GUEST_MAC, type: ETHER.IPV6, body: packet }),
      `${solicitation}${packet.toString('hex')}`,
    ],
    'last-4',
  )

  assert.ok(!texts.some((text) => text.includes('six!')))
  const answers = (await anna.guest.received()).filter((one) => one.slice(24, 28) === '86dd')
  assert.deepEqual(answers, [])
  for (const { slot } of [anna, berta]) {
    assert.equal(await runLine(`ip -n ${netnsName(testNet.network.instance, slot)} -6 addr`), '')
  }
})
