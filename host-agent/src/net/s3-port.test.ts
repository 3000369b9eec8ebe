/** Who reaches the S3 proxy, and that its traffic costs nothing. What it answers is tested in ../disks. */
import assert from 'node:assert/strict'
import { createServer } from 'node:net'
import { join } from 'node:path'
import { after, before, test } from 'node:test'
import { describeMount, S3_PROXY_UID } from '../disks/testing/proxy.ts'
import { runCommandOrThrow } from '../run-command.ts'
import { HOST_ADDRESS } from './names.ts'
import type { Target } from './testing/guest.ts'
import { NAME_SERVER, PRIVATE_HOSTS, PUBLIC_HOST, skipReason, UPLINK, WEB_PORT } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const QUOTA_BYTES = 1_000
const STORE = { endpoint: 'http://127.0.0.1:1', credentials: { accessKey: 'key', secretKey: 'secret' } }

const PROBE = join(import.meta.dirname, 'testing/probe-program.ts')
const [OPENED_HOST, ...CLOSED_HOSTS] = PRIVATE_HOSTS as [string, ...string[]]
const SECRET_PORT = 9_998
const STORE_PORT = 9_997

let testNet: TestNetwork
let closed: Sandbox

async function probeAs(uid: number, targets: Target[]): Promise<string[]> {
  const { stdout } = await runCommandOrThrow(process.execPath, [PROBE, JSON.stringify(targets), `${uid}`])
  return JSON.parse(stdout) as string[]
}

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ s3Proxy: { uid: S3_PROXY_UID, privateCidrs: [`${OPENED_HOST}/32`] } })
    const bandwidth = { quota_bytes: QUOTA_BYTES, used_bytes: 0, ingress_bytes: 0 }
    closed = await testNet.addSandbox('100.64.0.20', withRules(['none'], { bandwidth }))
  })
  after(() => testNet?.close())
}

/** Without the token of its mount. */
const askFrom = async ({ guest, ip }: Sandbox): Promise<string> => {
  const s3Proxy = testNet.network.s3Proxy!
  await s3Proxy.setMounts([describeMount(STORE, { sandboxIp: ip }).mount])
  const [answer] = await guest.probe({
    exchange: HOST_ADDRESS,
    port: s3Proxy.port,
    send: ['GET /key HTTP/1.1\r\nHost: disks\r\nConnection: close\r\n\r\n'],
  })
  return answer!
}

test('it runs from the first mount on; before, connections are not refused but wait', {
  skip: skipReason,
}, async () => {
  const s3Proxy = testNet.network.s3Proxy!
  assert.equal(s3Proxy.pid, undefined)

  const before = await closed.guest.probe({ tcp: HOST_ADDRESS, port: s3Proxy.port })
  const after = await askFrom(closed)

  assert.deepEqual(before, ['no answer'])
  assert.match(after, /^HTTP\/1\.1 401 /)
  assert.notEqual(s3Proxy.pid, undefined)
})

test('a sandbox that may reach nothing reaches it, outside of its budget', { skip: skipReason }, async () => {
  const { slots } = testNet.network

  for (let count = 0; count < 20; count++) assert.match(await askFrom(closed), /^HTTP\/1\.1 401 /)
  const usage = (await slots.usage([closed.slot])).get(closed.slot)
  assert.deepEqual(usage, { quota_bytes: QUOTA_BYTES, used_bytes: 0, ingress_bytes: 0, capped: false })
})

test('nothing else of the host is open beside it', { skip: skipReason }, async () => {
  const { port } = testNet.network.s3Proxy!

  const outcomes = await closed.guest.probe(
    { tcp: HOST_ADDRESS, port: port + 1 },
    { tcp: testNet.network.host.machine.addresses[0] ?? PUBLIC_HOST, port },
    { tcp: PUBLIC_HOST, port },
  )

  assert.deepEqual(outcomes, ['no answer', 'no answer', 'no answer'])
})

test('a process with its user reaches public addresses, name servers and opened blocks, and nothing else', {
  skip: skipReason,
}, async () => {
  const server = createServer((socket) => socket.end('secret')).listen(SECRET_PORT, '::')
  const closedTargets: Target[] = [
    ...['127.0.0.1', '::1', UPLINK.address, '169.254.1.1'].map((tcp) => ({ tcp, port: SECRET_PORT })),
    ...CLOSED_HOSTS.map((tcp) => ({ tcp, port: WEB_PORT })),
    { tcp: closed.ip, port: 22 },
  ]
  const open: Target[] = [
    { tcp: PUBLIC_HOST, port: WEB_PORT },
    { tcp: OPENED_HOST, port: WEB_PORT },
    { name: 'shop.example', server: NAME_SERVER.address },
  ]
  try {
    const outcomes = await probeAs(S3_PROXY_UID, [...closedTargets, ...open])

    assert.deepEqual(
      outcomes.slice(0, closedTargets.length),
      closedTargets.map(() => 'no answer'),
    )
    for (const outcome of outcomes.slice(closedTargets.length)) assert.match(outcome, /^(hello|192\.0\.2\.)/)
  } finally {
    server.close()
  }
})

test('a port of loopback is open to it while a mount has its store there', { skip: skipReason }, async () => {
  const server = createServer((socket) => socket.end('store')).listen(STORE_PORT, '127.0.0.1')
  const target = { tcp: '127.0.0.1', port: STORE_PORT }
  const s3Proxy = testNet.network.s3Proxy!
  const { mount } = describeMount({ ...STORE, endpoint: `http://127.0.0.1:${STORE_PORT}` }, { sandboxIp: closed.ip })
  try {
    await s3Proxy.setMounts([mount])
    assert.deepEqual(await probeAs(S3_PROXY_UID, [target]), ['store'])
    await s3Proxy.removeMounts([mount.id])
    assert.deepEqual(await probeAs(S3_PROXY_UID, [target]), ['no answer'])
  } finally {
    server.close()
  }
})

test('it is reached after a restart of the host agent', { skip: skipReason }, async () => {
  await testNet.restartHostAgent()

  assert.match(await askFrom(closed), /^HTTP\/1\.1 401 /)
})
