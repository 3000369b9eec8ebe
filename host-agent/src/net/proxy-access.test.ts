/**
 * What a process with the user of the egress proxy reaches, if it does not do as the proxy does. The same attempts of another user
 * show that all of it answers. Host, internet and guests are network namespaces of this test.
 */
import assert from 'node:assert/strict'
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createServer, type Server } from 'node:net'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import { runCommandOrThrow } from '../run-command.ts'
import { proxyTable } from './names.ts'
import type { Target } from './testing/guest.ts'
import { PRIVATE_HOSTS, PUBLIC_HOST, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { listRuleset, runNft } from './testing/kernel-state.ts'
import { PROXY_ACCESS, type Sandbox, TestNetwork } from './testing/test-network.ts'

const PROGRAM = join(import.meta.dirname, 'testing/probe-program.ts')
const LISTENER = join(import.meta.dirname, 'testing/listener-program.ts')
const OTHER_UID = 654_321
const SECRET_PORT = 9_999
const [GRANTED, ...CLOSED_HOSTS] = PRIVATE_HOSTS as [string, ...string[]]
/** On the network of the uplink, beside the machine itself; also the name server. */
const NEIGHBOUR = PROXY_ACCESS.upstreams[0]!.address

let testNet: TestNetwork
let sandbox: Sandbox
let servers: Server[]

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ privateCidrs: [`${GRANTED}/32`] })
    sandbox = await testNet.addSandbox('100.64.0.10')
    // `::` answers on IPv4 as well.
    servers = [createServer((socket) => socket.end('secret')).listen(SECRET_PORT, '::')]
  })
  after(async () => {
    for (const server of servers ?? []) server.close()
    await testNet?.close()
  })
}

const CLOSED: Target[] = [
  { tcp: '127.0.0.1', port: SECRET_PORT },
  { tcp: '127.1.2.3', port: SECRET_PORT },
  { tcp: '::1', port: SECRET_PORT },
  { tcp: '::ffff:127.0.0.1', port: SECRET_PORT },
  { tcp: '0.0.0.0', port: SECRET_PORT },
  { tcp: '169.254.1.1', port: SECRET_PORT },
  { tcp: UPLINK.address, port: SECRET_PORT },
  { tcp: NEIGHBOUR, port: WEB_PORT },
  ...CLOSED_HOSTS.map((host) => ({ tcp: host, port: WEB_PORT })),
]

test('it reaches public addresses, name servers and blocks that the operator opened, and nothing else', {
  skip: skipReason,
}, async () => {
  const open: Target[] = [
    { tcp: PUBLIC_HOST, port: WEB_PORT },
    { tcp: GRANTED, port: WEB_PORT },
    { name: 'shop.example', server: NEIGHBOUR },
    { nameOverTcp: 'shop.example', server: NEIGHBOUR },
  ]

  const asProxy = await probeAs(PROXY_ACCESS.uid, [...CLOSED, ...open])
  const asOther = await probeAs(OTHER_UID, [...CLOSED, ...open])

  assert.deepEqual(
    asProxy.slice(0, CLOSED.length),
    CLOSED.map(() => 'no answer'),
  )
  assert.deepEqual(asProxy.slice(CLOSED.length), asOther.slice(CLOSED.length))
  assert.ok(
    asOther.every((outcome) => /^(secret|hello|192\.0\.2\.)/.test(outcome)),
    asOther.join(', '),
  )
})

test('it sends no datagrams except queries, and does not reach sandboxes', { skip: skipReason }, async () => {
  const targets: Target[] = [
    { udp: PUBLIC_HOST, port: 7777, text: 'from the proxy' },
    { udp: NEIGHBOUR, port: 7777, text: 'from the proxy' },
    { udp: sandbox.ip, port: 7777, text: 'from the proxy' },
    { tcp: sandbox.ip, port: 22 },
  ]

  const asProxy = await probeAs(PROXY_ACCESS.uid, targets)
  const asOther = await probeAs(OTHER_UID, targets)

  for (const outcome of asProxy.slice(0, 3)) assert.match(outcome, /EPERM/)
  assert.equal(asProxy[3], 'no answer')
  assert.deepEqual(asOther, ['sent', 'sent', 'sent', 'ECONNREFUSED'])
})

test('what listens as its user answers neither this machine nor the networks around it', {
  skip: skipReason,
}, async (t) => {
  const ports = { [PROXY_ACCESS.uid]: 9_501, [OTHER_UID]: 9_502 }
  for (const [uid, port] of Object.entries(ports)) {
    const listener = spawn(process.execPath, [LISTENER, uid, `${port}`], { stdio: ['ignore', 'pipe', 'inherit'] })
    t.after(() => listener.kill('SIGKILL'))
    await once(listener.stdout!, 'data') // A pipe.
  }

  const fromHere = await probeAs(
    OTHER_UID,
    Object.values(ports).map((port) => ({ tcp: '127.0.0.1', port })),
  )
  const fromOutside = await Promise.all(
    Object.values(ports).map((port) =>
      testNet.internet.run(`curl -s --http0.9 -m 3 http://${UPLINK.address}:${port}/`).catch(() => 'no answer'),
    ),
  )

  // By the order of the numbers of their users.
  assert.deepEqual(fromHere, ['listening', 'no answer'])
  assert.deepEqual(fromOutside, ['listening', 'no answer'])
})

test('sandboxes get answers of the proxy', { skip: skipReason }, async () => {
  assert.deepEqual(await sandbox.guest.probe({ name: 'shop.example', server: '169.254.1.1' }), ['192.0.2.6'])
})

test('the proxy asks the name servers that the machine has now', { skip: skipReason }, async () => {
  await testNet.network.egressProxy.setUpstreams([])

  // The next check of the host finds them.
  await until(async () => {
    const [answer] = await sandbox.guest.probe({ name: 'not-asked-before.example', server: '169.254.1.1' })
    return answer === '198.51.100.7'
  })
})

test('the table comes back when another program removes it', {
  skip: skipReason,
}, async () => {
  const table = proxyTable(testNet.network.instance)

  runNft(`delete table inet ${table}`)
  await until(() => listRuleset().includes(table))

  assert.deepEqual(await probeAs(PROXY_ACCESS.uid, [{ tcp: '127.0.0.1', port: SECRET_PORT }]), ['no answer'])
})

async function probeAs(uid: number, targets: Target[]): Promise<string[]> {
  const { stdout } = await runCommandOrThrow(process.execPath, [PROGRAM, JSON.stringify(targets), `${uid}`])
  return JSON.parse(stdout) as string[]
}
