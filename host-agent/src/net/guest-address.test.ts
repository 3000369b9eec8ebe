/** Which address packets have inside a guest: that of its sandbox, or the initial one if its agent cannot change it. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import type { HostVmNetwork } from '@warren/protocol'
import { GUEST_MAC } from './names.ts'
import { ETHER, ether, ipv4, PROTOCOL, ping, udp } from './testing/frames.ts'
import { PUBLIC_HOST, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const OWNER = '100.64.0.10'
const MAPPED = '100.64.0.11'
const INITIAL = '172.30.0.2'
const TIME_EXCEEDED = 11
const members = [
  { ip: OWNER, name: 'owner' },
  { ip: MAPPED, name: 'mapped' },
]
const network: HostVmNetwork = withRules([], { networks: [{ id: 'net-01K0000000000000000000000A', members }] })

let testNet: TestNetwork
let owner: Sandbox
let mapped: Sandbox

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
    owner = await testNet.addSandbox(OWNER, network)
    mapped = await testNet.addMappedSandbox(MAPPED, network)
  })
  after(() => testNet?.close())
}

test('a guest that owns its address and one that cannot see each other with their addresses', {
  skip: skipReason,
}, async () => {
  await sendPing(owner, { from: OWNER, to: MAPPED, number: 1 })
  await sendPing(mapped, { from: INITIAL, to: OWNER, number: 2 })

  await until(async () => [...(await listPings(owner)), ...(await listPings(mapped))].length === 4)
  assert.deepEqual(await listPings(owner), [`reply 1 ${MAPPED} > ${OWNER}`, `request 2 ${MAPPED} > ${OWNER}`])
  assert.deepEqual(await listPings(mapped), [`reply 2 ${OWNER} > ${INITIAL}`, `request 1 ${OWNER} > ${INITIAL}`])
})

test('both reach the internet, and neither can send from the other kind of address', {
  skip: skipReason,
}, async () => {
  for (const [sandbox, own, other] of [
    [owner, OWNER, INITIAL],
    [mapped, INITIAL, MAPPED],
  ] as const) {
    await sendDatagram(sandbox, other, 'foreign')
    await sendDatagram(sandbox, own, `own-${sandbox.ip}`)
    await until(async () => (await testNet.internet.received()).includes(`own-${sandbox.ip} from ${UPLINK.address}`))
    assert.match((await sandbox.guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }))[0]!, /^hello/)
  }

  assert.ok(!(await testNet.internet.received()).some((one) => one.startsWith('foreign')))
})

test('both keep their addresses across a restart of the host agent', { skip: skipReason }, async () => {
  await testNet.restartHostAgent()

  for (const { guest } of [owner, mapped]) {
    assert.match((await guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }))[0]!, /^hello/)
  }
})

test('an ICMP error quotes the packet as a guest that owns its address sent it', { skip: skipReason }, async () => {
  // The slot forwards it, and it expires on the host, as in a traceroute.
  const body = udp(5000, 7777, 'expires')
  const packet = ipv4({ from: OWNER, to: PUBLIC_HOST, protocol: PROTOCOL.UDP, body, ttl: 2 })

  await owner.guest.inject([ether({ to: owner.gatewayMac, from: GUEST_MAC, body: packet })])

  const findError = async () =>
    (await listIpv4(owner)).find(({ protocol, body }) => protocol === PROTOCOL.ICMP && body[0] === TIME_EXCEEDED)
  await until(async () => (await findError()) !== undefined)
  const { from, body: error } = (await findError())!
  assert.equal(from, '169.254.1.1')
  assert.equal(error.subarray(20, 24).join('.'), OWNER)
})

const sendPing = (sandbox: Sandbox, { from, to, number }: { from: string; to: string; number: number }) =>
  sandbox.guest.inject([
    ether({
      to: sandbox.gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ from, to, protocol: PROTOCOL.ICMP, body: ping(number) }),
    }),
  ])

const sendDatagram = (sandbox: Sandbox, from: string, text: string) =>
  sandbox.guest.inject([
    ether({
      to: sandbox.gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ from, to: PUBLIC_HOST, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
    }),
  ])

const listPings = async (sandbox: Sandbox): Promise<string[]> =>
  (await listIpv4(sandbox))
    .filter(({ protocol, body }) => protocol === PROTOCOL.ICMP && (body[0] === 0 || body[0] === 8))
    .map(({ from, to, body }) => `${body[0] === 0 ? 'reply' : 'request'} ${body.readUInt16BE(6)} ${from} > ${to}`)
    .toSorted()

async function listIpv4({ guest }: Sandbox) {
  const frames = (await guest.received()).map((frame) => Buffer.from(frame, 'hex'))
  return frames
    .filter((frame) => frame.readUInt16BE(12) === ETHER.IPV4)
    .map((frame) => ({
      protocol: frame[23]!,
      from: frame.subarray(26, 30).join('.'),
      to: frame.subarray(30, 34).join('.'),
      body: frame.subarray(34),
    }))
}
