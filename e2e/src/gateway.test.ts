/**
 * Projects deployed by a wallet, in real sandboxes, paid on the development chain: what they are made of, how they fail, and
 * that nothing remains.
 */
import assert from 'node:assert/strict'
import { existsSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import http from 'node:http'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after, before, describe, test } from 'node:test'
import { until } from '@warren/kit/testing/until'
import {
  createFundedWallet,
  type Deployed,
  type GatewayWallet,
  type Outcome,
  openDevelopmentWallet,
} from './support/gateway-wallet.ts'
import { getGatewayPid, kill, runWarren } from './support/instance.ts'
import {
  cannotRunVms,
  deleteAllSandboxes,
  skipWithoutImage,
  startUnlessSkipped,
  startVmInstance,
  VM_STORIES_LIMIT_MS,
} from './support/vm-instance.ts'

const skip = cannotRunVms || (await skipWithoutImage('devbox:1'))
const DOLLAR = 1_000_000n
const PAID = 20n * DOLLAR
const RESTART_LIMIT_MS = 60_000
/** Where administrators of networks that intercept TLS add their authority: installs in guests need it. */
const AUTHORITIES = '/usr/local/share/ca-certificates'

const points = mkdtempSync(path.join(tmpdir(), 'warren-points-'))
after(() => rmSync(points, { recursive: true }))
const warren = await startUnlessSkipped(skip, () =>
  startVmInstance({
    WARREN_CRASH_POINTS: points,
    WARREN_GATEWAY: 'on',
    WARREN_GATEWAY_PORT: '0',
    WARREN_GATEWAY_APPS_PORT: '0',
    WARREN_GATEWAY_METRICS_PORT: '0',
    WARREN_GATEWAY_RATE_LIMIT: '0',
    WARREN_GATEWAY_ADDRESS_RATE_LIMIT: '0',
    WARREN_GATEWAY_BUILD_SHAPE: 's-2vcpu-2gb',
    WARREN_GATEWAY_BUILD_SECONDS: '1800',
    WARREN_GATEWAY_DEPLOY_SECONDS: '1800',
    WARREN_GATEWAY_APPS_RATE_LIMIT: '0',
    ...(existsSync(AUTHORITIES) ? { WARREN_GUEST_CA_FILE: AUTHORITIES } : {}),
  }),
)

let wallet: GatewayWallet

const SHARED = { 'X-Use-Existing-Credits': 'true' }

async function deploy(
  uniqueName: string,
  files: Record<string, string>,
  settings: object = {},
  headers: Record<string, string> = SHARED,
): Promise<Outcome> {
  const response = await wallet.startDeploy({ uniqueName, files, settings }, headers)
  const deployed = (await response.json()) as Deployed
  assert.equal(response.status, 200, JSON.stringify(deployed))
  return { ...deployed, ...(await wallet.waitForOutcome(deployed)) }
}

async function deployReady(name: string, files: Record<string, string>, settings: object = {}): Promise<string> {
  const outcome = await deploy(name, files, settings)
  assert.equal(outcome.status, 'ready', JSON.stringify(outcome))
  return outcome.endpoint
}

async function readFixture(name: string): Promise<Record<string, string>> {
  const folder = path.join(import.meta.dirname, 'fixtures', name)
  const files = await readdir(folder)
  return Object.fromEntries(
    await Promise.all(files.map(async (file) => [file, await readFile(path.join(folder, file), 'utf8')])),
  )
}

/** Names below localhost lead to this machine, whatever the resolver says. */
function get(endpoint: string, target = '/'): Promise<{ status: number; body: string }> {
  const { host, port } = new URL(endpoint)
  const { promise, resolve, reject } = Promise.withResolvers<{ status: number; body: string }>()
  const sent = http.get({ host: '127.0.0.1', port, path: target, headers: { host }, agent: false }, (response) => {
    response
      .toArray()
      .then((chunks) => resolve({ status: response.statusCode!, body: Buffer.concat(chunks).toString() }), reject)
  })
  sent.once('error', reject)
  return promise
}

/** The first message of a WebSocket: a text frame of less than 126 bytes. */
function readMessage(endpoint: string): Promise<string> {
  const { host, port } = new URL(endpoint)
  const { promise, resolve, reject } = Promise.withResolvers<string>()
  const upgrade = { Connection: 'Upgrade', Upgrade: 'websocket', 'Sec-WebSocket-Version': '13' }
  const headers = { ...upgrade, host, 'Sec-WebSocket-Key': Buffer.alloc(16).toString('base64') }
  const sent = http.get({ host: '127.0.0.1', port, headers, agent: false })
  sent.once('upgrade', (_response, socket, head) => {
    const read = (frame: Buffer) => {
      socket.destroy()
      resolve(frame.subarray(2, 2 + frame[1]!).toString())
    }
    if (head.length > 2) read(head)
    else socket.once('data', read)
  })
  sent.once('response', (response) => reject(new Error(`status ${response.statusCode}`)))
  sent.once('error', reject)
  return promise
}

async function listSandboxes(): Promise<string[]> {
  const key = (await readFile(path.join(warren.instance.dataDir, 'gateway.key'), 'utf8')).trim()
  const response = await fetch(`${warren.instance.baseUrl}/v1/sandboxes?limit=500`, { headers: { 'X-Api-Key': key } })
  const { data } = (await response.json()) as { data: { data: { name: string; status: string }[] } }
  return data.data.filter(({ status }) => status !== 'destroyed' && status !== 'failed').map(({ name }) => name)
}

/** Returns the pid of the gateway that was started after this one ended. */
async function untilReplaced(pid: number): Promise<number> {
  const { dataDir } = warren.instance
  await until(
    async () => (await wallet.isGatewayUp()) && (await getGatewayPid(dataDir)) !== pid,
    'another gateway is up',
    RESTART_LIMIT_MS,
  )
  return getGatewayPid(dataDir)
}

describe('the deployment gateway', { skip, timeout: VM_STORIES_LIMIT_MS }, () => {
  before(async () => {
    wallet = await openDevelopmentWallet(warren.instance.dataDir)
  })
  // Also after a failure: the gateway would start the apps again that the clean-up of the instance deletes.
  after(() => wallet.deleteProjects())

  test('`warren gateway demo` deploys a site, pays on the development chain, and prints its URL', async () => {
    const { stdout } = await runWarren(warren.instance.dataDir, 'gateway', 'demo')

    const endpoint = stdout.trim()
    assert.match(endpoint, /^https:\/\/demo\.apps\.localhost:\d+$/)
    const { status, body } = await get(endpoint)
    assert.equal(status, 200)
    assert.match(body, /<h1>It works<\/h1>/)
  })

  test('a transfer on the development chain is a payment, and a redeploy replaces the site', async () => {
    const hash = await wallet.pay(PAID)
    const first = await deploy('plain', { 'index.html': '<h1>one</h1>' }, {}, { 'X-Payment-Tx': hash })
    assert.equal(first.status, 'ready', JSON.stringify(first))
    assert.deepEqual(await get(first.endpoint), { status: 200, body: '<h1>one</h1>' })

    const second = await deploy('plain', { 'index.html': '<h1>two</h1>' })

    assert.equal(second.projectId, first.projectId)
    assert.equal((await get(second.endpoint)).body, '<h1>two</h1>')
  })

  test('a redeploy under load loses none of 1,000 requests', async () => {
    const { endpoint } = await deploy('busy', { 'index.html': 'one' })
    const answers: { status: number; body: string }[] = []
    let [sent, isReplaced] = [0, false]
    const send = async () => {
      while (!isReplaced || sent < 1_000) {
        sent++
        answers.push(await get(endpoint))
      }
    }
    const load = Promise.all(Array.from({ length: 4 }, send))

    const second = await deploy('busy', { 'index.html': 'two' })
    isReplaced = true
    await load

    assert.equal(second.status, 'ready', JSON.stringify(second))
    assert.deepEqual([...new Set(answers.map(({ status, body }) => `${status} ${body}`))], ['200 one', '200 two'])
    assert.equal(answers.at(-1)!.body, 'two')
  })

  test('the gateway is killed while it takes a payment, builds, and promotes: the app is ready, and paid once', async (t) => {
    const { dataDir } = warren.instance
    const payer = await createFundedWallet(wallet, 5n * DOLLAR)
    t.after(() => payer.deleteProjects())
    const headers = { 'X-Payment-Tx': await payer.pay(3n * DOLLAR) }
    const project = {
      uniqueName: 'killed',
      files: { 'index.html': 'source' },
      settings: { buildCommand: 'sleep 5 && echo built > index.html' },
    }
    const killNextAt = (point: string) => writeFileSync(path.join(points, point), 'kill')

    // Between the payment and the rows of the project, in the middle of their transaction: nothing was consumed.
    const first = await getGatewayPid(dataDir)
    killNextAt('deploy.paid')
    await assert.rejects(payer.startDeploy(project, headers))
    const second = await untilReplaced(first)
    const accepted = await payer.startDeploy(project, headers)
    const deployed = (await accepted.json()) as Deployed
    assert.equal(accepted.status, 200, JSON.stringify(deployed))

    // While it builds. The supervisor of `warren start` starts it again, and the lease of the killed one ends.
    await until(async () => (await payer.readStatus(deployed)).deployment_status === 'building', 'it builds', 300_000)
    killNextAt('promote.begun')
    kill(second)
    const third = await untilReplaced(second)

    // Once more just before the app is served.
    await until(() => existsSync(path.join(points, 'promote.begun.reached')), 'it is killed again', 600_000)
    await untilReplaced(third)
    const outcome = await payer.waitForOutcome(deployed)

    assert.equal(outcome.status, 'ready', JSON.stringify(outcome))
    assert.equal((await get(outcome.endpoint)).body, 'built\n')
    const repeated = await payer.startDeploy(project, headers)
    const { projectId, deploymentId } = deployed
    const answer = { error: 'Payment already processed', projectId, deploymentId }
    assert.deepEqual([repeated.status, await repeated.json()], [409, answer])
    const asked = await payer.startDeploy({ ...project, uniqueName: 'another' })
    const { current_credit_balance_usd: credit } = (await asked.json()) as { current_credit_balance_usd: number }
    assert.equal(asked.status, 402)
    // Some minutes of usage, at half a dollar a month.
    assert.ok(credit > 2.99 && credit <= 3, `credit is ${credit}`)
    await until(
      async () => (await listSandboxes()).filter((name) => name.includes(deployed.projectId)).length === 1,
      'only the sandbox of the app is left',
    )
  })

  test('a Dockerfile app: its steps change the whole system, and run with its user and variables', async () => {
    const endpoint = await deployReady(
      'docker',
      {
        Dockerfile:
          'FROM node:22-slim AS build\nWORKDIR /src\nCOPY . .\nRUN echo built > /opt/result\n' +
          'FROM node:22-slim\nRUN useradd app\nCOPY --from=build /opt/result /srv/result\nCOPY server.js /srv/\n' +
          'ENV GREETING=hello\nUSER app\nWORKDIR /srv\nEXPOSE 8000\nCMD ["node", "server.js"]\n',
        'server.js':
          "require('node:http').createServer((_, r) => r.end([process.env.GREETING, require('node:os').userInfo().username, require('node:fs').readFileSync('/srv/result')].join(' '))).listen(8000)",
      },
      { hasDockerfile: true },
    )

    assert.equal((await get(endpoint)).body.trim(), 'hello app built')
  })

  test('a crash loop and a wrong port are failed with a reason, and leave no sandbox', async () => {
    const loopFiles = { 'app.js': "console.error('no database'); process.exit(1)", 'package.json': '{}' }
    const wrongFiles = { 'app.js': "require('node:http').createServer(() => {}).listen(9999)", 'package.json': '{}' }
    const [loop, wrong] = await Promise.all([deploy('loop', loopFiles), deploy('wrong', wrongFiles)])

    assert.equal(loop.status, 'failed')
    assert.match(loop.reason, /^the app exited with 1 before it answered on port 3000\n[\s\S]*no database/)
    assert.equal(wrong.status, 'failed')
    assert.match(wrong.reason, /^nothing listens on port 3000 after 120 s\. It listens on 9999\./)
    await until(async () => (await listSandboxes()).every((name) => !name.includes(wrong.projectId)))
  })

  test('an Express app with a lockfile is installed and sees its host name; its WebSocket works', async () => {
    const endpoint = await deployReady('express-app', await readFixture('express-app'))

    assert.equal((await get(endpoint)).body, `express at ${new URL(endpoint).host}`)
    assert.equal(await readMessage(endpoint), 'hello')
  })

  test('a FastAPI app is installed in a virtual environment and started with uvicorn', async () => {
    const endpoint = await deployReady('fastapi-app', await readFixture('fastapi-app'))

    assert.equal((await get(endpoint)).body, '{"framework":"fastapi"}')
  })

  test('deleting all projects frees everything', async () => {
    await wallet.deleteProjects()

    await until(async () => (await wallet.getJson<{ count: number }>('/agent/projects')).count === 0)
    await until(async () => (await listSandboxes()).length === 0, 'no sandbox is left')
    const folder = path.join(warren.instance.dataDir, 'gateway')
    const files = [...(await readdir(path.join(folder, 'uploads'))), ...(await readdir(path.join(folder, 'artifacts')))]
    assert.deepEqual(files, [])
    // There is none: it waits until the host agent has no VM.
    await deleteAllSandboxes(warren)
  })
})
