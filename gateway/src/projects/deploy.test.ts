/** The deploy route over real connections: large and slow bodies, a killed process, and what a wallet sees of its projects. */
import assert from 'node:assert/strict'
import { randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import net, { type AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import {
  activate,
  createDeployGateway,
  createFundedWallet,
  deployBody,
  PRICE,
  pay,
  readPool,
  sendDeploy,
  startChains,
} from '../testing/deploys.ts'
import { startGatewayProcess } from '../testing/gateway-process.ts'
import { createTestWallet } from '../testing/wallet.ts'

const chains = await startChains()
const gateway = await createDeployGateway(chains)
await gateway.app.listen({ host: '127.0.0.1', port: 0 })
const { port } = gateway.app.server.address() as AddressInfo
const deployUrl = `http://127.0.0.1:${port}/agent/deploy`

const textOf = (headers: Record<string, string>): string =>
  Object.entries(headers)
    .map(([name, value]) => `${name}: ${value}\r\n`)
    .join('')

/** Sends a head and the given start of a body, and resolves with the first line of the answer. */
async function sendHead(headers: Record<string, string>, start = ''): Promise<string> {
  const socket = net.connect(port, '127.0.0.1')
  after(() => socket.destroy())
  socket.write(`POST /agent/deploy HTTP/1.1\r\nHost: x\r\n${textOf(headers)}\r\n${start}`)
  const [chunk] = await once(socket, 'data')
  socket.destroy()
  return String(chunk).split('\r\n')[0]!
}

test('authentication comes before the body: a bad signature is answered without a byte of it', async () => {
  const { 'x-signature': _, ...unsigned } = await createTestWallet().sign()

  assert.equal(await sendHead({ ...unsigned, 'content-length': '49000000' }), 'HTTP/1.1 401 Unauthorized')
})

test('a body that is stated or turns out too large is 400, and the connection can answer', async () => {
  const wallet = createTestWallet()

  assert.equal(await sendHead({ ...(await wallet.sign()), 'content-length': '50000001' }), 'HTTP/1.1 400 Bad Request')
  const small = await createDeployGateway(chains, { config: { bodyMaxBytes: 2_000 } })
  await small.app.listen({ host: '127.0.0.1', port: 0 })
  const { port: smallPort } = small.app.server.address() as AddressInfo
  const chunked = new ReadableStream({
    start(controller) {
      for (let i = 0; i < 10; i++) controller.enqueue(Buffer.alloc(1_000, 32))
      controller.close()
    },
  })
  const options = { method: 'POST', headers: await wallet.sign(), body: chunked, duplex: 'half' } as RequestInit
  const response = await fetch(`http://127.0.0.1:${smallPort}/agent/deploy`, options)
  assert.equal(response.status, 400)
  assert.deepEqual(await response.json(), { error: 'body: must not be larger than 2000 bytes' })
})

test('50 MB body: the largest upload is parsed beside the event loop, which keeps answering', {
  timeout: 600_000,
}, async () => {
  const wallet = await createFundedWallet(chains)
  const content = Buffer.alloc(12_000_000, 'warren').toString('base64')
  const files = [1, 2, 3].map((one) => ({ path: `part-${one}.bin`, content }))
  const body = JSON.stringify(deployBody({ upload: { type: 'files', files } }))
  assert.ok(body.length > 47_000_000)
  const headers = { ...(await wallet.sign()), 'x-payment-tx': await pay(chains, wallet, PRICE) }

  let [isDone, answered] = [false, 0]
  const poll = (async () => {
    while (!isDone) {
      const { status } = await fetch(`http://127.0.0.1:${port}/health`)
      if (status === 200) answered++
    }
  })()
  const response = await fetch(deployUrl, { method: 'POST', headers, body })
  isDone = true
  await poll

  assert.equal(response.status, 200)
  assert.ok(answered > 0, 'health was answered meanwhile')
})

/** Connects from an address of this machine, sends a signed head and the first byte of a body, and then nothing more. */
async function openSlowUpload(localAddress: string): Promise<net.Socket> {
  const socket = net.connect({ port, host: '127.0.0.1', localAddress })
  after(() => socket.destroy())
  const headers = textOf({ ...(await createTestWallet().sign()), 'content-length': '1000' })
  socket.write(`POST /agent/deploy HTTP/1.1\r\nHost: x\r\n${headers}\r\n{`)
  return socket
}

test('slow clients at many addresses do not block others, and one address has 16 uploads at most', async () => {
  const addresses = Array.from({ length: 8 }, (_, i) => `127.0.0.${i + 10}`)
  const sockets = await Promise.all([...addresses, ...addresses.slice(0, 1)].map(openSlowUpload))
  for (let i = 0; i < 16; i++) sockets.push(await openSlowUpload('127.0.0.50'))
  await until(async () => (await connectionsOf(gateway.app.server)) >= sockets.length, 'the slow clients are connected')

  const { status } = await gateway.request({
    method: 'POST',
    url: '/agent/deploy',
    ip: '192.0.2.7',
    headers: await createTestWallet().sign(),
    body: deployBody(),
  })
  assert.equal(status, 402)
  // Which of the seventeen arrives last is open; one of them is refused.
  const last = await openSlowUpload('127.0.0.50')
  const answers = [...sockets.slice(-16), last].map(async (socket) => String((await once(socket, 'data'))[0]))
  assert.match(await Promise.race(answers), /^HTTP\/1\.1 429 /)
  for (const socket of [...sockets, last]) socket.destroy()
})

test('bodies that wait for a place are all served in the end', async () => {
  const wallet = await createFundedWallet(chains)
  const addresses = Array.from({ length: 10 }, (_, i) => `198.51.100.${i}`)

  const answers = await Promise.all(
    addresses.map(async (ip) =>
      gateway.request({ method: 'POST', url: '/agent/deploy', ip, headers: await wallet.sign(), body: deployBody() }),
    ),
  )

  assert.deepEqual(
    answers.map(({ status }) => status),
    Array(10).fill(402),
  )
})

const connectionsOf = (server: net.Server): Promise<number> =>
  new Promise((resolve, reject) => server.getConnections((error, count) => (error ? reject(error) : resolve(count))))

test('gateway killed between payment and project rows: nothing is consumed, and the request works afterwards', async () => {
  const crashPoints = await mkdtemp(path.join(tmpdir(), 'warren-crash-'))
  after(() => rm(crashPoints, { recursive: true, force: true }))
  await writeFile(path.join(crashPoints, 'deploy.paid'), 'kill')
  const doomed = await startGatewayProcess(gateway.deps, crashPoints)
  const wallet = await createFundedWallet(chains)
  const body = deployBody()
  const hash = await pay(chains, wallet, PRICE)
  const headers = { ...(await wallet.sign()), 'x-payment-tx': hash }

  await assert.rejects(fetch(`${doomed.url}/agent/deploy`, { method: 'POST', headers, body: JSON.stringify(body) }))
  await doomed.ended

  assert.equal(await readPool(gateway, wallet.address), 0n)
  const again = await sendDeploy(gateway, wallet, body, { 'x-payment-tx': hash })
  assert.equal(again.status, 200)
  assert.equal(await readPool(gateway, wallet.address), PRICE)
})

test('a wallet sees its projects and their status; others get 403, and unknown ids 404', async () => {
  const wallet = await createFundedWallet(chains)
  const stranger = createTestWallet()
  const body = deployBody({ uniqueName: 'My-Site' })
  const { body: deployed } = await sendDeploy(gateway, wallet, body, {
    'x-payment-tx': await pay(chains, wallet, PRICE),
  })
  const get = async (who: { sign: typeof wallet.sign }, url: string) =>
    gateway.request({ url, headers: await who.sign() })
  const statusUrl = `/agent/deploy/${deployed.projectId}/${deployed.deploymentId}/status`

  const listed = await get(wallet, '/agent/projects')
  assert.deepEqual([listed.body.wallet, listed.body.count], [wallet.address, 1])
  const [{ createdAt, ...project }] = listed.body.projects
  assert.deepEqual(project, {
    id: deployed.projectId,
    name: 'My-Site',
    displayName: 'A site',
    status: 'queued',
    url: null,
  })
  assert.match(createdAt, /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/)
  assert.deepEqual((await get(wallet, statusUrl)).body, {
    status: 'deploying',
    deployment_id: deployed.deploymentId,
    deployment_status: 'queued',
    message: 'Deployment in progress',
  })
  await activate(gateway, deployed.projectId)
  assert.deepEqual((await get(wallet, statusUrl)).body, {
    status: 'ready',
    deployment_id: deployed.deploymentId,
    endpoint: 'https://My-Site.apps.example',
  })

  assert.deepEqual((await get(stranger, '/agent/projects')).body.projects, [])
  const foreign = await get(stranger, statusUrl)
  assert.deepEqual([foreign.status, foreign.body], [403, { error: 'Not authorized for this project' }])
  for (const [one, other] of [
    [randomUUID(), deployed.deploymentId],
    [deployed.projectId, randomUUID()],
    ['x', 'y'],
  ]) {
    assert.equal((await get(wallet, `/agent/deploy/${one}/${other}/status`)).status, 404)
  }
})
