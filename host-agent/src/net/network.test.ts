/** What a sandbox reaches and what not, with real packets: host, internet and guests are namespaces of this test. */
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { createLog } from '@warren/kit/log'
import { until } from '@warren/kit/testing/until'
import { findFlowsFrom, openConntrack } from './netd/netlink/conntrack.ts'
import { type Network, openNetwork } from './open.ts'
import { type Guest, startGuest } from './testing/guest.ts'
import {
  cannotRun,
  command,
  Internet,
  moveToFreshHost,
  NAME_SERVER,
  PRIVATE_HOSTS,
  PUBLIC_HOST,
  randomInstance,
  UPLINK,
  WEB_PORT,
} from './testing/host.ts'

const API_PORT = 8080
const SECRET_PORT = 9999
const ANNA = '100.64.0.10'
const BERTA = '100.64.0.11'

let internet: Internet
let network: Network
let anna: Guest
let berta: Guest
const servers: Server[] = []
const stateDir = mkdtempSync(join(tmpdir(), 'warren-net-'))

if (cannotRun === false) {
  before(async () => {
    await moveToFreshHost()
    internet = await Internet.start()
    for (const port of [API_PORT, SECRET_PORT]) servers.push(createServer((socket) => socket.end('host')).listen(port))
    network = await openNetwork(createLog({ name: 'test', level: 'warn', format: 'json' }), {
      instance: randomInstance(),
      cidr: '100.64.0.0/16',
      apiPorts: [API_PORT],
      poolSize: 2,
      tapOwnerUid: 0,
      stateDir,
      upstreams: [NAME_SERVER],
    })
    await network.slots.start().until
    anna = await startGuest(network.netd, (await network.slots.claim(ANNA)).slot)
    berta = await startGuest(network.netd, (await network.slots.claim(BERTA)).slot)
  })

  after(async () => {
    await anna?.stop()
    await berta?.stop()
    await network?.netd.request('tearDownHost')
    await network?.close()
    internet?.stop()
    for (const server of servers) server.close()
    await rm(stateDir, { recursive: true })
  })
}

test('the world is reached, and sees the host', { skip: cannotRun }, async () => {
  const outcomes = await anna.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })

  assert.deepEqual(outcomes, [`hello ${UPLINK.address}`])
  assert.deepEqual(network.host, { uplinks: [UPLINK.name], mtu: UPLINK.mtu, warnings: [] })
})

test('private ranges and the metadata address are closed', { skip: cannotRun }, async () => {
  const outcomes = await anna.probe(...PRIVATE_HOSTS.map((tcp) => ({ tcp, port: WEB_PORT })))

  assert.deepEqual(
    outcomes,
    PRIVATE_HOSTS.map(() => 'no answer'),
  )
  // They do answer: it is the rules that keep the guest away.
  for (const host of PRIVATE_HOSTS) assert.match(await command(`curl -s --http0.9 -m 5 http://${host}/`), /^hello/)
})

test('of the host only names and the API are open', { skip: cannotRun }, async () => {
  const addresses = ['169.254.1.1', UPLINK.address]
  const outcomes = await anna.probe(
    ...addresses.map((tcp) => ({ tcp, port: API_PORT })),
    ...addresses.map((tcp) => ({ tcp, port: SECRET_PORT })),
    { tcp: '127.0.0.1', port: SECRET_PORT },
  )

  assert.deepEqual(outcomes, ['host', 'host', 'no answer', 'no answer', 'ECONNREFUSED'])
})

test('another sandbox is out of reach, and so is an address nobody has', { skip: cannotRun }, async () => {
  const outcomes = await anna.probe({ tcp: BERTA, port: WEB_PORT }, { tcp: '100.64.0.99', port: WEB_PORT })

  assert.equal(outcomes[0], 'no answer')
  // The blackhole says so at once; either way nothing left the host.
  assert.match(outcomes[1]!, /^(no answer|EINVAL|EHOSTUNREACH|ENETUNREACH)$/)
  // The host itself gets there: a guest without a listener refuses.
  await assert.rejects(command(`curl -s -m 5 http://${BERTA}/`), /exit code 7/)
})

test('names resolve, whichever server is asked', { skip: cannotRun }, async () => {
  const outcomes = await anna.probe(
    { name: 'example.com', server: '169.254.1.1' },
    { name: 'example.com', server: '10.9.9.9' },
    { name: 'example.com', server: '198.18.77.77' },
    { nameOverTcp: 'example.com', server: '169.254.1.1' },
  )

  assert.deepEqual(outcomes, Array(4).fill('198.51.100.7'))
})

test('a packet with another source than its own goes nowhere', { skip: cannotRun }, async () => {
  for (const address of ['172.30.0.99', BERTA, '198.18.66.6']) await anna.inside(`ip addr add ${address}/32 dev eth0`)

  await anna.probe(
    ...['172.30.0.99', BERTA, '198.18.66.6'].map((from) => ({ udp: PUBLIC_HOST, port: 7777, text: 'forged', from })),
  )
  await anna.probe({ udp: PUBLIC_HOST, port: 7777, text: 'honest' })

  await until(async () => (await internet.seen()).includes(`honest from ${UPLINK.address}`))
  const datagrams = (await internet.seen()).filter((one) => one.includes(' from '))
  assert.deepEqual(datagrams, [`honest from ${UPLINK.address}`])
})

test('setting the host up again disturbs nobody', { skip: cannotRun }, async () => {
  const before = await command('nft list ruleset')
  const settings = { cidr: '100.64.0.0/16', gate: network.gatePorts, apiPorts: [API_PORT] }
  const again = await network.netd.request('setUpHost', settings)

  assert.deepEqual(again, network.host)
  assert.equal(await command('nft list ruleset'), before)
  assert.deepEqual(await berta.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }), [`hello ${UPLINK.address}`])
})

test('an address that is given back takes its flows along', { skip: cannotRun }, async () => {
  using flows = openConntrack()
  const { slot } = await network.slots.claim('100.64.0.12')
  const clara = await startGuest(network.netd, slot)
  for (const guest of [anna, clara]) await guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })
  const before = findFlowsFrom(flows, '100.64.0.12').length

  await clara.stop()
  await network.slots.release(slot)

  assert.ok(before > 0)
  assert.equal(findFlowsFrom(flows, '100.64.0.12').length, 0)
  assert.ok(findFlowsFrom(flows, ANNA).length > 0)
})
