/** What a sandbox reaches, with real packets: host, internet and guests are network namespaces of this test. */
import assert from 'node:assert/strict'
import { mkdtempSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { createLog } from '@warren/kit/log'
import { until } from '@warren/kit/testing/until'
import { VmmLauncher } from '../vmm/launcher-client.ts'
import { outerVeth } from './names.ts'
import { type Network, openNetwork } from './open.ts'
import { type Guest, startGuest } from './testing/guest.ts'
import {
  Internet,
  moveToFreshHost,
  NAME_SERVER,
  PRIVATE_HOSTS,
  PUBLIC_HOST,
  randomInstance,
  runLine,
  skipReason,
  UPLINK,
  WEB_PORT,
} from './testing/host.ts'
import { listFlows, listRules } from './testing/kernel-state.ts'
import { LIMITS, PROXY_ACCESS, withRules } from './testing/test-network.ts'

const API_PORT = 8080
const API = { port: API_PORT, beyondLoopback: true }
const SECRET_PORT = 9999
const ANNA = '100.64.0.10'
const BERTA = '100.64.0.11'

let internet: Internet
let network: Network
let launcher: VmmLauncher
let anna: Guest
let berta: Guest
const servers: Server[] = []
const stateDir = mkdtempSync(join(tmpdir(), 'warren-net-'))

if (skipReason === false) {
  before(async () => {
    await moveToFreshHost()
    internet = await Internet.start()
    for (const port of [API_PORT, SECRET_PORT]) servers.push(createServer((socket) => socket.end('host')).listen(port))
    const instance = randomInstance()
    launcher = new VmmLauncher(instance)
    network = await openNetwork(createLog({ name: 'test', level: 'warn', format: 'json' }), {
      instance,
      cidr: '100.64.0.0/16',
      api: API,
      limits: LIMITS,
      poolSize: 2,
      tapOwnerUid: 0,
      proxyUid: PROXY_ACCESS.uid,
      stateDir,
      upstreams: [NAME_SERVER],
    })
    await network.slots.start().until
    anna = await startGuest(launcher, (await network.slots.claim(ANNA)).slot, ANNA)
    berta = await startGuest(launcher, (await network.slots.claim(BERTA)).slot, BERTA)
  })

  after(async () => {
    await anna?.stop()
    await berta?.stop()
    await network?.netd.request('tearDownHost')
    await network?.close()
    await launcher?.close()
    internet?.stop()
    for (const server of servers) server.close()
    await rm(stateDir, { recursive: true })
  })
}

test('a sandbox reaches the internet with the address of the host', { skip: skipReason }, async () => {
  const outcomes = await anna.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })

  assert.deepEqual(outcomes, [`hello ${UPLINK.address}`])
  assert.deepEqual(network.host, {
    uplinks: [UPLINK.name],
    mtu: UPLINK.mtu,
    warnings: [],
    machine: { addresses: [UPLINK.address], subnets: ['198.51.100.128/25'] },
    upstreams: [NAME_SERVER],
  })
})

test('private ranges and the metadata address are closed', { skip: skipReason }, async () => {
  const outcomes = await anna.probe(...PRIVATE_HOSTS.map((tcp) => ({ tcp, port: WEB_PORT })))

  assert.deepEqual(
    outcomes,
    PRIVATE_HOSTS.map(() => 'no answer'),
  )
  // The host reaches them, so it is the rules that keep the guest away.
  for (const host of PRIVATE_HOSTS) assert.match(await runLine(`curl -s --http0.9 -m 5 http://${host}/`), /^hello/)
})

test('of the host a sandbox reaches only DNS and the API', { skip: skipReason }, async () => {
  const addresses = ['169.254.1.1', UPLINK.address]
  const outcomes = await anna.probe(
    ...addresses.map((tcp) => ({ tcp, port: API_PORT })),
    ...addresses.map((tcp) => ({ tcp, port: SECRET_PORT })),
    { tcp: '127.0.0.1', port: SECRET_PORT },
  )

  assert.deepEqual(outcomes, ['host', 'host', 'no answer', 'no answer', 'ECONNREFUSED'])
})

test('an API that listens for this machine and its sandboxes only is reached at one address', {
  skip: skipReason,
}, async () => {
  // It would apply the settings of this network again.
  await network.guard.close()
  const settings = {
    cidr: '100.64.0.0/16',
    egressProxy: network.egressProxyPorts,
    s3Port: 0,
    proxyAccess: PROXY_ACCESS,
    limits: LIMITS,
  }
  await network.netd.request('setUpHost', { ...settings, api: { port: API_PORT, beyondLoopback: false } })

  const outcomes = await anna.probe(
    { tcp: '169.254.1.1', port: API_PORT },
    { tcp: UPLINK.address, port: API_PORT },
    { tcp: '169.254.1.1', port: SECRET_PORT },
  )
  await network.netd.request('setUpHost', { ...settings, api: API })

  assert.deepEqual(outcomes, ['host', 'no answer', 'no answer'])
})

test('with rules a sandbox reaches the API if one of them names its address and port', {
  skip: skipReason,
}, async () => {
  const outcomes: Record<string, string | undefined> = {}
  for (const [i, rule] of [
    '169.254.1.1',
    `169.254.1.1:${API_PORT}`,
    '169.254.1.0/24',
    '169.254.1.1:1',
    '0.0.0.0/0',
  ].entries()) {
    const ip = `100.64.0.${20 + i}`
    const { slot } = await network.slots.claim(ip, withRules([rule]))
    const guest = await startGuest(launcher, slot, ip)
    const probe = { tcp: '169.254.1.1', port: API_PORT }
    const secret = { tcp: '169.254.1.1', port: SECRET_PORT }
    outcomes[rule] = (await guest.probe(probe, secret)).join(', ')
    await guest.stop()
    await network.slots.release(slot)
  }

  assert.deepEqual(outcomes, {
    '169.254.1.1': 'host, no answer',
    '169.254.1.1:8080': 'host, no answer',
    '169.254.1.0/24': 'host, no answer',
    '169.254.1.1:1': 'no answer, no answer',
    '0.0.0.0/0': 'no answer, no answer',
  })
})

test('the address for sandboxes is reached on this machine, and not from the networks around it', {
  skip: skipReason,
}, async () => {
  const fetchFrom = (where: (line: string) => Promise<string>, address: string, port = API_PORT) =>
    where(`curl -s --http0.9 -m 2 http://${address}:${port}/`).catch(() => 'no answer')
  // A container bridge, for example: not an uplink.
  await runLine('ip netns add neighbours')
  await runLine('ip link add side0 type veth peer name side1 netns neighbours')
  await runLine('ip addr add 192.168.44.1/24 dev side0')
  await runLine('ip link set side0 up')
  const neighbour = (line: string) => runLine(`ip netns exec neighbours ${line}`)
  await neighbour('ip addr add 192.168.44.2/24 dev side1')
  await neighbour('ip link set side1 up')
  await neighbour('ip route add 169.254.1.1 via 192.168.44.1')
  const outside = (line: string) => internet.run(line)
  await outside(`ip route add 169.254.1.1 via ${UPLINK.address}`)
  try {
    assert.equal(await fetchFrom(runLine, '169.254.1.1'), 'host')
    assert.equal(await fetchFrom(neighbour, '169.254.1.1'), 'no answer')
    assert.equal(await fetchFrom(outside, '169.254.1.1'), 'no answer')
    // Even at a port that the table does not know, such as one that the system has just chosen.
    assert.equal(await fetchFrom(outside, '169.254.1.1', SECRET_PORT), 'no answer')
    // Both reach the machine, so it is the rules that keep them away.
    assert.equal(await fetchFrom(neighbour, '192.168.44.1'), 'host')
    assert.equal(await fetchFrom(outside, UPLINK.address), 'host')
  } finally {
    await runLine('ip link del side0')
    await runLine('ip netns del neighbours')
  }
})

test('a sandbox reaches neither another sandbox nor an unused address', { skip: skipReason }, async () => {
  const outcomes = await anna.probe({ tcp: BERTA, port: WEB_PORT }, { tcp: '100.64.0.99', port: WEB_PORT })

  assert.equal(outcomes[0], 'no answer')
  // The blackhole route may answer with an error; in both cases nothing leaves the host.
  assert.match(outcomes[1]!, /^(no answer|EINVAL|EHOSTUNREACH|ENETUNREACH)$/)
  // The host reaches the guest, which refuses the connection because nothing listens.
  await assert.rejects(runLine(`curl -s -m 5 http://${BERTA}/`), /exit code 7/)
})

test('names are resolved whichever server is queried', { skip: skipReason }, async () => {
  const outcomes = await anna.probe(
    { name: 'example.com', server: '169.254.1.1' },
    { name: 'example.com', server: '10.9.9.9' },
    { name: 'example.com', server: '203.0.113.77' },
    { nameOverTcp: 'example.com', server: '169.254.1.1' },
  )

  assert.deepEqual(outcomes, Array(4).fill('198.51.100.7'))
})

test('a packet with a spoofed source address is dropped', { skip: skipReason }, async () => {
  for (const address of ['172.30.0.2', BERTA, '203.0.113.66']) await anna.run(`ip addr add ${address}/32 dev eth0`)

  await anna.probe(
    ...['172.30.0.2', BERTA, '203.0.113.66'].map((from) => ({ udp: PUBLIC_HOST, port: 7777, text: 'spoofed', from })),
  )
  await anna.probe({ udp: PUBLIC_HOST, port: 7777, text: 'honest' })

  await until(async () => (await internet.received()).includes(`honest from ${UPLINK.address}`))
  const datagrams = (await internet.received()).filter((one) => one.includes(' from '))
  assert.deepEqual(datagrams, [`honest from ${UPLINK.address}`])
})

test('setting up the host again has no effect on sandboxes', { skip: skipReason }, async () => {
  const before = listRules()
  const settings = {
    cidr: '100.64.0.0/16',
    egressProxy: network.egressProxyPorts,
    s3Port: 0,
    proxyAccess: PROXY_ACCESS,
    api: API,
    limits: LIMITS,
  }
  const again = await network.netd.request('setUpHost', settings)

  assert.deepEqual(again, network.host)
  assert.equal(listRules(), before)
  assert.deepEqual(await berta.probe({ tcp: PUBLIC_HOST, port: WEB_PORT }), [`hello ${UPLINK.address}`])
})

test('releasing an address deletes its flows', { skip: skipReason }, async () => {
  const { slot } = await network.slots.claim('100.64.0.12')
  const clara = await startGuest(launcher, slot, '100.64.0.12')
  for (const guest of [anna, clara]) await guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })
  const before = listFlows('100.64.0.12').length

  await clara.stop()
  await network.slots.release(slot)

  assert.ok(before > 0)
  assert.equal(listFlows('100.64.0.12').length, 0)
  assert.ok(listFlows(ANNA).length > 0)
})

test('a slot of which nothing was sent has received no packet on the host, so there is no flow to delete', {
  skip: skipReason,
}, async () => {
  const ip = '100.64.0.13'
  const { slot } = await network.slots.claim(ip)
  const guest = await startGuest(launcher, slot, ip)
  const received = async () => {
    const [link] = JSON.parse(await runLine(`ip -json -statistics link show dev ${outerVeth(network.instance, slot)}`))
    return link.stats64.rx.packets
  }

  const before = await received()
  await guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })
  const after = await received()
  await guest.stop()
  await network.slots.release(slot)

  assert.equal(before, 0)
  assert.ok(after > 0)
  assert.equal(listFlows(ip).length, 0)
})
