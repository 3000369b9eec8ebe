/**
 * Other programs change nftables on the machine: what a sandbox reaches meanwhile, and that Warren restores its table.
 * Host, internet and guests are network namespaces of this test.
 */
import assert from 'node:assert/strict'
import { createSocket, type Socket } from 'node:dgram'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { hostTable } from './names.ts'
import type { Target } from './testing/guest.ts'
import { PUBLIC_HOST, runLine, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { keepTableDeleted, listRules, runNft } from './testing/kernel-state.ts'
import { API, type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const HOST = '169.254.1.1'
const SECRET_PORT = 9_999
const DNS_PORT = 53
/** On the network of the uplink, beside the machine itself. */
const NEIGHBOUR = '198.51.100.129'

let testNet: TestNetwork
let open: Sandbox
let ruled: Sandbox
const servers: (Server | Socket)[] = []
const received: string[] = []

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open()
    for (const port of [API.port, SECRET_PORT, DNS_PORT]) {
      servers.push(createServer((socket) => socket.end('host')).listen(port, '0.0.0.0'))
    }
    for (const port of [SECRET_PORT, DNS_PORT]) {
      const socket = createSocket('udp4').on('message', (text) => void received.push(`${port} ${text}`))
      socket.bind(port, '0.0.0.0')
      await once(socket, 'listening')
      servers.push(socket)
    }
    open = await testNet.addSandbox('100.64.0.10')
    ruled = await testNet.addSandbox('100.64.0.11', withRules(['shop.example', '169.254.1.1:9999']))
  })
  after(async () => {
    await testNet?.close()
    for (const server of servers) server.close()
  })
}

const CLOSED: Target[] = [
  { tcp: HOST, port: SECRET_PORT },
  { tcp: HOST, port: DNS_PORT },
  { tcp: UPLINK.address, port: SECRET_PORT },
  { tcp: UPLINK.address, port: DNS_PORT },
  { tcp: NEIGHBOUR, port: WEB_PORT },
  { udp: HOST, port: SECRET_PORT, text: 'secret' },
  { udp: HOST, port: DNS_PORT, text: 'name' },
  { udp: UPLINK.address, port: SECRET_PORT, text: 'secret' },
  { udp: UPLINK.address, port: DNS_PORT, text: 'name' },
]

test('the networks of the uplink are closed', { skip: skipReason }, async () => {
  const outcomes = await open.guest.probe({ tcp: NEIGHBOUR, port: WEB_PORT }, { tcp: PUBLIC_HOST, port: WEB_PORT })

  assert.deepEqual(outcomes, ['no answer', `hello ${UPLINK.address}`])
  assert.match(await runLine(`curl -s --http0.9 -m 5 http://${NEIGHBOUR}/`), /^hello/)
})

test('while the table of the host is missing, no port of the host opens, and the table is restored', {
  skip: skipReason,
}, async () => {
  const intact = listRules()
  // Also removes each table that is restored meanwhile, so that the guests try all ports without one.
  const flushing = keepTableDeleted(hostTable(testNet.network.instance))

  const outcomes = await Promise.all([open, ruled].map(({ guest }) => guest.probe(...CLOSED)))
  const flushes = flushing.stop()

  assert.ok(flushes > 0)
  for (const list of outcomes) {
    for (const [index, outcome] of list.entries()) {
      assert.match(outcome, /^(no answer|ECONNREFUSED|sent)$/, `${JSON.stringify(CLOSED[index])} got ${outcome}`)
    }
  }
  assert.deepEqual(received, [])
  await until(() => listRules() === intact)
  assert.deepEqual(
    await open.guest.probe(
      { tcp: PUBLIC_HOST, port: WEB_PORT },
      { tcp: HOST, port: API.port },
      { tcp: HOST, port: SECRET_PORT },
      { name: 'shop.example', server: HOST },
      { nameOverTcp: 'shop.example', server: HOST },
    ),
    [`hello ${UPLINK.address}`, 'host', 'no answer', '192.0.2.6', '192.0.2.6'],
  )
})

for (const [change, command] of [
  ['deleted', (table: string) => `delete table ip ${table}`],
  ['emptied', (table: string) => `flush table ip ${table}`],
  ['given another rule', (table: string) => `insert rule ip ${table} input accept`],
  ['flushed with all others', () => 'flush ruleset'],
] as const) {
  test(`a table that another program has ${change} is restored`, { skip: skipReason }, async () => {
    const intact = listRules()

    runNft(command(hostTable(testNet.network.instance)))
    assert.notEqual(listRules(), intact)

    await until(() => listRules() === intact)
  })
}

test('an address of the host that another program has removed is restored', { skip: skipReason }, async () => {
  await runLine(`ip addr del ${HOST}/32 dev lo`)

  await until(async () => (await runLine('ip addr show lo')).includes(HOST))
})

test('forwarding that another program has turned off is restored', { skip: skipReason }, async () => {
  await runLine('sysctl -qw net.ipv4.ip_forward=0')

  await untilProbed({ tcp: PUBLIC_HOST, port: WEB_PORT }, `hello ${UPLINK.address}`)
})

test('tables of other programs are left alone', { skip: skipReason }, async () => {
  runNft('table ip other {\n chain input {\n type filter hook input priority 0; policy accept;\n }\n}')
  runNft(`delete table ip ${hostTable(testNet.network.instance)}`)

  await until(() => listRules().includes(hostTable(testNet.network.instance)))
  assert.match(listRules(), /table ip other/)
  runNft('delete table ip other')
})

test('a network that the machine is connected to later is closed, and opens when it is gone', {
  skip: skipReason,
}, async () => {
  const before = await open.guest.probe({ tcp: PUBLIC_HOST, port: WEB_PORT })

  await runLine(`ip addr add 203.0.113.254/28 dev ${UPLINK.name}`)
  await testNet.internet.run('ip addr add 203.0.113.241/28 dev up1')
  const [connected] = await untilProbed({ tcp: '203.0.113.241', port: WEB_PORT }, 'no answer')
  await runLine(`ip addr del 203.0.113.254/28 dev ${UPLINK.name}`)
  const [gone] = await untilProbed({ tcp: '203.0.113.241', port: WEB_PORT }, `hello ${UPLINK.address}`)

  assert.deepEqual([before, connected, gone], [[`hello ${UPLINK.address}`], 'no answer', `hello ${UPLINK.address}`])
})

async function untilProbed(target: Target, expected: string): Promise<string[]> {
  let outcomes: string[] = []
  await until(async () => {
    outcomes = await open.guest.probe(target)
    return outcomes[0] === expected
  })
  return outcomes
}
