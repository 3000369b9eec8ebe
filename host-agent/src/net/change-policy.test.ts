/** Changes of a sandbox's rules: while it runs, before it runs, and across a restart of the host agent. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { GUEST_MAC } from './names.ts'
import { ether, ipv4, PROTOCOL, udp } from './testing/frames.ts'
import { HeldFlow } from './testing/held-flow.ts'
import { NAME_SERVER, PUBLIC_HOST, skipReason } from './testing/host.ts'
import { RULED, SHOP } from './testing/internet-names.ts'
import { listFlows } from './testing/kernel-state.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const [, OTHER] = RULED as [string, string]
/** The source address of the internet's datagrams. */
const ONE = NAME_SERVER.address
const MANY_TICKS = 20

let testNet: TestNetwork
let anna: Sandbox

if (skipReason === false) {
  before(async () => {
    // It is in a network of the machine, so a rule opens it only if the operator allows it.
    testNet = await TestNetwork.open({ privateCidrs: [`${ONE}/32`] })
    anna = await testNet.addSandbox('100.64.0.10', withRules([ONE, OTHER, 'shop.example']))
  })
  after(() => testNet?.close())
}

test('narrower rules end flows that they do not allow, in both directions and immediately, and no others', {
  skip: skipReason,
}, async (t) => {
  const droppedTcp = new HeldFlow(anna.guest, { tcp: ONE, port: 9000, send: 'x' })
  const droppedUdp = new HeldFlow(anna.guest, { udp: ONE, port: 9001, send: 'x' })
  const allowed = new HeldFlow(anna.guest, { tcp: OTHER, port: 9000, send: 'x' })
  const proxied = new HeldFlow(anna.guest, {
    tcp: SHOP,
    port: 80,
    send: 'GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n',
  })
  const flows = [droppedTcp, droppedUdp, allowed, proxied]
  t.after(() => flows.map((flow) => flow.stop()))
  await until(() => flows.every((flow) => flow.count > 0))

  await testNet.network.slots.change(anna.slot, withRules([OTHER], { revision: 1 }))

  assert.deepEqual(
    listFlows(anna.ip).filter(({ destination }) => destination === ONE),
    [],
  )
  await until(() => proxied.closed)
  // What the server sent before the change has arrived once the allowed flow has received a lot more.
  await waitForMore(allowed)
  const counts = [droppedTcp.count, droppedUdp.count]
  await waitForMore(allowed)
  assert.deepEqual([droppedTcp.count, droppedUdp.count], counts)
  assert.equal(allowed.closed, false)
})

test('a change with a lower revision is ignored', { skip: skipReason }, async () => {
  const late = await testNet.network.slots.change(anna.slot, withRules(['*'], { revision: 0 }))

  assert.deepEqual(late, { revision: 1 })
  assert.deepEqual(await anna.guest.probe({ tcp: PUBLIC_HOST, port: 80 }), ['no answer'])
})

test('of concurrent changes the highest revision takes effect', { skip: skipReason }, async () => {
  const revisions = [5, 3, 6, 4]
  await Promise.all(
    revisions.map((revision) =>
      testNet.network.slots.change(anna.slot, withRules([revision === 6 ? ONE : '*'], { revision })),
    ),
  )

  assert.deepEqual(
    (await anna.guest.probe({ tcp: PUBLIC_HOST, port: 80 }, { tcp: ONE, port: 80 })).map((got) => got.split(' ')[0]),
    ['no', 'hello'],
  )
})

test('a change during which netd and the egress proxy die is in force when it settles', {
  skip: skipReason,
}, async () => {
  process.kill(testNet.network.egressProxy.pid!, 'SIGKILL')
  const change = testNet.network.slots.change(anna.slot, withRules(['shop.example'], { revision: 7 }))
  process.kill(testNet.network.netd.pid!, 'SIGKILL')
  await change

  const shop = { exchange: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'] }
  const evil = { exchange: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n'] }
  const outcomes = await anna.guest.probe(shop, evil, { tcp: ONE, port: 9000 })
  assert.match(outcomes[0]!, /^HTTP\/1.1 200/)
  assert.match(outcomes[1]!, /^HTTP\/1.1 403/)
  assert.equal(outcomes[2], 'no answer')
})

test('the next host agent applies the same rules, names included', { skip: skipReason }, async () => {
  await testNet.restartHostAgent()

  const outcomes = await anna.guest.probe(
    { query: 'shop.example', type: 1 },
    { query: 'evil.example', type: 1 },
    { exchange: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'] },
    { tcp: PUBLIC_HOST, port: 9000 },
  )
  assert.deepEqual(outcomes.slice(0, 2), [`NOERROR ${SHOP}`, 'NXDOMAIN'])
  assert.match(outcomes[2]!, /^HTTP\/1.1 200/)
  assert.equal(outcomes[3], 'no answer')
  assert.deepEqual(await testNet.network.slots.change(anna.slot, withRules(['*'], { revision: 6 })), { revision: 7 })
})

test('of a guest that sends before, during and after the assignment of its rules, only what they allow leaves', {
  skip: skipReason,
}, async () => {
  const berta = await testNet.addUnassignedGuest()
  const ip = '100.64.0.20'
  const frames = [
    { to: PUBLIC_HOST, text: 'early-evil' },
    { to: ONE, text: 'early-good' },
  ].map(({ to, text }) =>
    ether({
      to: berta.gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ from: ip, to, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
    }),
  )
  await berta.guest.inject(Array(100).fill(frames).flat())
  assert.deepEqual(
    (await testNet.internet.received()).filter((one) => one.startsWith('early')),
    [],
  )

  const assigned = testNet.network.slots.assign(berta.slot, ip, withRules([ONE]))
  for (let settled = false; !settled; ) {
    assigned.finally(() => {
      settled = true
    })
    await berta.guest.inject(frames)
  }
  await assigned
  await until(async () => {
    await berta.guest.inject(frames)
    return (await testNet.internet.received()).some((one) => one.startsWith('early-good'))
  })

  assert.deepEqual(
    (await testNet.internet.received()).filter((one) => one.startsWith('early-evil')),
    [],
  )
})

async function waitForMore(flow: HeldFlow): Promise<void> {
  const before = flow.count
  await until(() => flow.count > before + MANY_TICKS)
}
