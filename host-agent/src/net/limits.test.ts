/**
 * What one sandbox takes of what all of them share: entries in the kernel's table of connections, and answers of the resolver.
 * Host, internet and guests are network namespaces of this test.
 */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { GUEST_MAC } from './names.ts'
import { ether, ipv4, PROTOCOL, renderQuery, udp } from './testing/frames.ts'
import { PUBLIC_HOST, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { SHOP } from './testing/internet-names.ts'
import { listFlows } from './testing/kernel-state.ts'
import { API, CIDR, PROXY_ACCESS, type Sandbox, TestNetwork } from './testing/test-network.ts'

const HOST = '169.254.1.1'
const LIMITS = { flows: 60, newFlowsPerSecond: 1_000, packetsPerSecond: 100_000, dnsPerSecond: 5 }
/** Five seconds of the rate. */
const DNS_BURST = 25
const FLOOD = 400

let testNet: TestNetwork
let hostile: Sandbox
let neighbour: Sandbox

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ limits: LIMITS })
    hostile = await testNet.addSandbox('100.64.0.10')
    neighbour = await testNet.addSandbox('100.64.0.11')
  })
  after(() => testNet?.close())
}

test('a sandbox has no more connections in the table of the host than it may, and its neighbour connects', {
  skip: skipReason,
}, async () => {
  await flood(hostile, PUBLIC_HOST, 7777, () => 'flow')
  await until(() => listFlows(hostile.ip).length > 0)

  assert.deepEqual(await neighbour.guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }), [`hello ${UPLINK.address}`])
  const count = listFlows(hostile.ip).length
  assert.ok(count <= LIMITS.flows, `${count} connections are tracked`)
  assert.ok(count > LIMITS.flows / 2, `only ${count} connections are tracked`)
})

test('above its rate of DNS queries a sandbox waits for answers, gets no wrong ones, and does not delay its neighbour', {
  skip: skipReason,
}, async () => {
  const curious = await testNet.addSandbox('100.64.0.13')
  const startedAt = performance.now()
  await flood(curious, HOST, 53, (i) => renderQuery(`to-host-${i}.example`, i))
  await flood(curious, '203.0.113.77', 53, (i) => renderQuery(`elsewhere-${i}.example`, i))
  const answers = await neighbour.guest.probe({ name: 'shop.example', server: HOST })
  const countQueries = async () =>
    (await testNet.internet.received()).filter((one) => /^queried (to-host|elsewhere)-/.test(one)).length
  await until(async () => (await countQueries()) >= DNS_BURST)
  const queries = await countQueries()
  const seconds = (performance.now() - startedAt) / 1_000

  assert.deepEqual(answers, [SHOP])
  const allowed = DNS_BURST + Math.ceil(LIMITS.dnsPerSecond * seconds) + 1
  assert.ok(queries <= allowed, `${queries} queries were answered, not ${allowed}`)
  // Its next query is answered correctly, if not at once.
  await until(async () => {
    const [answer] = await curious.guest.probe({ name: 'shop.example', server: HOST })
    assert.match(answer!, /^(192\.0\.2\.6|ETIMEOUT|no answer)$/)
    return answer === SHOP
  })
})

test('new connections of a sandbox are limited per second', { skip: skipReason }, async () => {
  // It would apply the settings of this network again.
  await testNet.network.guard.close()
  const limits = { flows: 10_000, newFlowsPerSecond: 20, packetsPerSecond: 100_000, dnsPerSecond: 5 }
  const settings = {
    cidr: CIDR,
    egressProxy: testNet.network.egressProxyPorts,
    s3Port: 0,
    proxyAccess: PROXY_ACCESS,
    api: API,
    limits,
  }
  await testNet.network.netd.request('setUpHost', settings)
  const clara = await testNet.addSandbox('100.64.0.12')

  const startedAt = performance.now()
  await flood(clara, PUBLIC_HOST, 7777, () => 'flow')
  await until(() => listFlows(clara.ip).length >= 5 * limits.newFlowsPerSecond)
  const seconds = (performance.now() - startedAt) / 1_000

  const count = listFlows(clara.ip).length
  assert.ok(count <= Math.ceil((5 + seconds) * limits.newFlowsPerSecond) + 1, `${count} connections in ${seconds} s`)
})

/** Datagrams from as many ports, so that each is a new connection. */
async function flood(
  { guest, ip, gatewayMac }: Sandbox,
  to: string,
  port: number,
  body: (index: number) => string | Buffer,
): Promise<void> {
  const frames = Array.from({ length: FLOOD }, (_, i) =>
    ether({
      to: gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ from: ip, to, protocol: PROTOCOL.UDP, body: udp(20_000 + i, port, body(i)) }),
    }),
  )
  await guest.inject(frames)
}
