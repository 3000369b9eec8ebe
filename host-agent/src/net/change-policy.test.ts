/** Rules that change under a sandbox, before it and without the host agent that set them. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { findFlowsFrom, openConntrack } from './netd/netlink/conntrack.ts'
import { ether, ipv4, PROTOCOL, udp } from './testing/frames.ts'
import { Hold } from './testing/held-flow.ts'
import { cannotRun, NAME_SERVER, PUBLIC_HOST } from './testing/host.ts'
import { RULED, SHOP } from './testing/internet-names.ts'
import { GUEST_MAC, type Sandbox, World, withRules } from './testing/test-network.ts'

const [, OTHER] = RULED as [string, string]
/** From where the internet's datagrams come. */
const ONE = NAME_SERVER.address
const MANY_TICKS = 20

let world: World
let anna: Sandbox

if (cannotRun === false) {
  before(async () => {
    world = await World.open()
    anna = await world.sandbox('100.64.0.10', withRules([ONE, OTHER, 'shop.example']))
  })
  after(() => world?.close())
}

test('narrowing cuts what it no longer allows, both ways and at once, and nothing else', {
  skip: cannotRun,
}, async (t) => {
  const gone = new Hold(anna.guest, { tcp: ONE, port: 9000, send: 'x' })
  const goneUdp = new Hold(anna.guest, { udp: ONE, port: 9001, send: 'x' })
  const kept = new Hold(anna.guest, { tcp: OTHER, port: 9000, send: 'x' })
  const proxied = new Hold(anna.guest, { tcp: SHOP, port: 80, send: 'GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n' })
  const holds = [gone, goneUdp, kept, proxied]
  t.after(() => holds.map((hold) => hold.stop()))
  await until(() => holds.every((hold) => hold.count > 0))

  await world.network.slots.change(anna.slot, withRules([OTHER], { revision: 1 }))

  using conntrack = openConntrack()
  assert.deepEqual(
    findFlowsFrom(conntrack, anna.ip).filter(({ destination }) => destination === ONE),
    [],
  )
  await until(() => proxied.closed)
  // What had left the server before is at the guest when the flow that goes on has had many more.
  await waitForMore(kept)
  const counts = [gone.count, goneUdp.count]
  await waitForMore(kept)
  assert.deepEqual([gone.count, goneUdp.count], counts)
  assert.equal(kept.closed, false)
})

test('a list that comes late does not undo a later one', { skip: cannotRun }, async () => {
  const late = await world.network.slots.change(anna.slot, withRules(['*'], { revision: 0 }))

  assert.deepEqual(late, { revision: 1 })
  assert.deepEqual(await anna.guest.probe({ tcp: PUBLIC_HOST, port: 80 }), ['no answer'])
})

test('changes asked at once end as the highest revision', { skip: cannotRun }, async () => {
  const revisions = [5, 3, 6, 4]
  await Promise.all(
    revisions.map((revision) =>
      world.network.slots.change(anna.slot, withRules([revision === 6 ? ONE : '*'], { revision })),
    ),
  )

  assert.deepEqual(
    (await anna.guest.probe({ tcp: PUBLIC_HOST, port: 80 }, { tcp: ONE, port: 80 })).map((got) => got.split(' ')[0]),
    ['no', 'hello'],
  )
})

test('a change that netd or the gate did not survive is in force when it settles', { skip: cannotRun }, async () => {
  process.kill(world.network.gate.pid!, 'SIGKILL')
  const change = world.network.slots.change(anna.slot, withRules(['shop.example'], { revision: 7 }))
  process.kill(world.network.netd.pid!, 'SIGKILL')
  await change

  const shop = { talk: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'] }
  const evil = { talk: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n'] }
  const outcomes = await anna.guest.probe(shop, evil, { tcp: ONE, port: 9000 })
  assert.match(outcomes[0]!, /^HTTP\/1.1 200/)
  assert.match(outcomes[1]!, /^HTTP\/1.1 403/)
  assert.equal(outcomes[2], 'no answer')
})

test('the next host agent keeps the rules, names and all', { skip: cannotRun }, async () => {
  await world.restartHostAgent()

  const outcomes = await anna.guest.probe(
    { ask: 'shop.example', type: 1 },
    { ask: 'evil.example', type: 1 },
    { talk: SHOP, port: 80, send: ['GET / HTTP/1.1\r\nHost: shop.example\r\n\r\n'] },
    { tcp: PUBLIC_HOST, port: 9000 },
  )
  assert.deepEqual(outcomes.slice(0, 2), [`NOERROR ${SHOP}`, 'NXDOMAIN'])
  assert.match(outcomes[2]!, /^HTTP\/1.1 200/)
  assert.equal(outcomes[3], 'no answer')
  assert.deepEqual(await world.network.slots.change(anna.slot, withRules(['*'], { revision: 6 })), { revision: 7 })
})

test('of a guest that sends before, while and after it gets its rules, only what they allow leaves', {
  skip: cannotRun,
}, async () => {
  const berta = await world.nobody()
  const frames = [
    { to: PUBLIC_HOST, text: 'early-evil' },
    { to: ONE, text: 'early-good' },
  ].map(({ to, text }) =>
    ether({
      to: berta.gatewayMac,
      from: GUEST_MAC,
      body: ipv4({ to, protocol: PROTOCOL.UDP, body: udp(5000, 7777, text) }),
    }),
  )
  await berta.guest.inject(Array(100).fill(frames).flat())
  assert.deepEqual(
    (await world.internet.seen()).filter((one) => one.startsWith('early')),
    [],
  )

  const given = world.network.slots.give(berta.slot, '100.64.0.20', withRules([ONE]))
  for (let settled = false; !settled; ) {
    given.finally(() => {
      settled = true
    })
    await berta.guest.inject(frames)
  }
  await given
  await until(async () => {
    await berta.guest.inject(frames)
    return (await world.internet.seen()).some((one) => one.startsWith('early-good'))
  })

  assert.deepEqual(
    (await world.internet.seen()).filter((one) => one.startsWith('early-evil')),
    [],
  )
})

async function waitForMore(hold: Hold): Promise<void> {
  const before = hold.count
  await until(() => hold.count > before + MANY_TICKS)
}
