/** Who reaches the S3 proxy, and that its traffic costs nothing. What it answers is tested in ../disks. */
import assert from 'node:assert/strict'
import { after, before, test } from 'node:test'
import { describeMount } from '../disks/testing/proxy.ts'
import { HOST_ADDRESS } from './names.ts'
import { PUBLIC_HOST, skipReason } from './testing/host.ts'
import { type Sandbox, TestNetwork, withRules } from './testing/test-network.ts'

const QUOTA_BYTES = 1_000
const STORE = { endpoint: 'http://127.0.0.1:1', credentials: { accessKey: 'key', secretKey: 'secret' } }

let testNet: TestNetwork
let closed: Sandbox

if (skipReason === false) {
  before(async () => {
    testNet = await TestNetwork.open({ s3Proxy: { privateCidrs: [] } })
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

test('it is reached after a restart of the host agent', { skip: skipReason }, async () => {
  await testNet.restartHostAgent()

  assert.match(await askFrom(closed), /^HTTP\/1\.1 401 /)
})
