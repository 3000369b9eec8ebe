/**
 * The deployment gateway: how fast it verifies signed requests, how long a static site takes from the request to an app that
 * answers, and what its proxy costs against the ingress of the same sandbox.
 */
import { randomBytes, randomUUID } from 'node:crypto'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { createRequire } from 'node:module'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { hashMessage } from 'viem'
import { generatePrivateKey, privateKeyToAccount } from 'viem/accounts'
import { parseAuthHeaders, signedMessage } from '../../../gateway/src/auth/headers.ts'
import { createVerifier } from '../../../gateway/src/auth/verifier.ts'
import { createClient, type GatewayClient } from '../../../gateway/src/cli/client.ts'
import { deployFolder } from '../../../gateway/src/cli/deploy.ts'
import { readAccount } from '../../../gateway/src/cli/key.ts'
import { ROOT } from '../child.ts'
import { compareTimes, rounds, settle, time } from '../compare-times.ts'
import { interleave } from '../interleave.ts'
import type { Fixture, Measurement, NotComparable, Row, Run } from '../row.ts'
import { Api } from '../vm/api.ts'
import { type Instance, startInstance } from '../vm/instance.ts'
import { BODY, measureRate, type Target, waitUntilServed } from './ingress.ts'

const NOT_COMPARABLE: NotComparable = { whyNot: 'it uses parts of the gateway of this checkout' }

export const gatewayVerifyRow: Row = {
  name: 'gateway-verify',
  what: 'signed requests verified per second by one thread: headers, message, recovery; against the bare recovery',
  unit: 'req/s',
  baseline: 'secp256k1 recover of a hash',
  measure: measureVerification,
  comparison: NOT_COMPARABLE,
}

export const gatewayDeployRow: Row = {
  name: 'gateway-deploy',
  what: 'a static site from the deploy request to ready, against the same steps through the sandbox API',
  unit: 'ms',
  baseline: 'create, upload, start, first response',
  measure: measureDeploy,
  comparison: NOT_COMPARABLE,
}

export const gatewayProxyRow: Row = {
  name: 'gateway-proxy',
  what: 'requests through the proxy of apps, against the ingress of the same sandbox',
  unit: 'req/s',
  baseline: "the sandbox's ingress",
  measure: measureProxy,
  comparison: NOT_COMPARABLE,
}

const SIGNED = 64

async function measureVerification(run: Run): Promise<Measurement> {
  const account = privateKeyToAccount(generatePrivateKey())
  const requests = await Promise.all(
    Array.from({ length: SIGNED }, async () => {
      const [timestamp, nonce] = [String(Date.now()), randomUUID()]
      const message = `${account.address}:${timestamp}:${nonce}`
      const signature = await account.signMessage({ message })
      const headers = {
        'x-wallet-address': account.address,
        'x-signature': signature,
        'x-timestamp': timestamp,
        'x-nonce': nonce,
      }
      const compact = new Uint8Array(Buffer.from(signature.slice(2, 130), 'hex'))
      return {
        headers,
        compact,
        recovery: Number.parseInt(signature.slice(130), 16) - 27,
        hash: hashMessage(message, 'bytes'),
      }
    }),
  )
  const verifier = await createVerifier({ warn: (text: unknown) => run.report(`  ${String(text)}`) })
  const { ecdsaRecover } = createRequire(import.meta.url)('secp256k1') as typeof import('secp256k1')
  let [ok, all] = [0, 0]
  const rateOf = async (verify: () => Promise<void>) => {
    const startedAt = performance.now()
    await verify()
    return SIGNED / ((performance.now() - startedAt) / 1000)
  }
  const verifyAll = async () => {
    for (const { headers } of requests) {
      const parsed = parseAuthHeaders(headers)
      const signer = await verifier.recover(signedMessage(parsed), parsed.signature)
      all++
      if (signer === account.address.toLowerCase()) ok++
    }
  }
  const recoverAll = async () => {
    for (const { compact, recovery, hash } of requests) ecdsaRecover(compact, recovery, hash, false)
  }
  const turns = await interleave(run, { ours: () => rateOf(verifyAll), baseline: () => rateOf(recoverAll) })
  return { ...turns, ok: ok / all }
}

type GatewayInstance = Instance & { client: GatewayClient; appsPort: number; ownApi: Api; site: string; name: string }

const SHAPE = 's-0.5vcpu-1gb'
const IMAGE = 'devbox:1'
const PORT = 3000
const POLL_MS = 50
const START_LIMIT_MS = 120_000

const gateway: Fixture<GatewayInstance> = async (run) => {
  const env = {
    WARREN_GATEWAY: 'on',
    WARREN_GATEWAY_PORT: '0',
    WARREN_GATEWAY_APPS_PORT: '0',
    WARREN_GATEWAY_METRICS_PORT: '0',
    WARREN_GATEWAY_RATE_LIMIT: '0',
    WARREN_GATEWAY_ADDRESS_RATE_LIMIT: '0',
    WARREN_GATEWAY_APPS_RATE_LIMIT: '0',
    WARREN_GATEWAY_DEPLOYS_PER_DAY: '10000',
    WARREN_GATEWAY_DRAIN_SECONDS: '0',
  }
  const instance = await startInstance(run, { root: ROOT, env })
  const site = await mkdtemp(path.join(tmpdir(), 'warren-bench-site-'))
  run.defer(() => rm(site, { recursive: true, force: true }))
  await writeFile(path.join(site, 'index.html'), BODY)
  const { gatewayUrl, gatewayDevelopment, baseUrl } = await readInstance(run, instance.dataDir)
  const client = createClient(gatewayUrl, await readAccount(gatewayDevelopment.keyFile, {}))
  const ownApi = new Api(baseUrl, (await readFile(path.join(instance.dataDir, 'gateway.key'), 'utf8')).trim())
  run.defer(ownApi.close)
  // The first deployment pays; those that follow are free. It also boots the base of the shape.
  const name = `bench-${randomBytes(4).toString('hex')}`
  run.defer(() => deleteProjects(client, ownApi))
  const url = await deployFolder(client, site, { name, pay: 1 }, () => {})
  return { ...instance, client, appsPort: Number(new URL(url).port), ownApi, site, name }
}

type InstanceFile = { gatewayUrl: string; gatewayDevelopment: { keyFile: string }; baseUrl: string }

/** The gateway starts after the rest, and appears in the file then. */
async function readInstance(run: Run, dataDir: string): Promise<InstanceFile> {
  const deadline = performance.now() + START_LIMIT_MS
  for (;;) {
    const known: Partial<InstanceFile> = JSON.parse(await readFile(path.join(dataDir, 'instance.json'), 'utf8'))
    if (known.gatewayDevelopment !== undefined) return known as InstanceFile
    if (performance.now() > deadline) throw new Error('the gateway did not start; anvil may be missing')
    await delay(POLL_MS, undefined, { signal: run.signal })
  }
}

/** Until their sandboxes are gone, which the host agent would otherwise keep running. */
async function deleteProjects(client: GatewayClient, api: Api): Promise<void> {
  const { projects } = await client.call<{ projects: { id: string }[] }>('GET', '/agent/projects')
  for (const { id } of projects) await client.call('DELETE', `/agent/projects/${id}`)
  const isGone = ({ status }: { status: string }) => status === 'destroyed' || status === 'failed'
  while (!(await api.list()).data.every(isGone)) await delay(POLL_MS)
}

type Status = { status: string; deployment_status?: string; reason?: string }
const ROUNDS = 12

async function measureDeploy(run: Run): Promise<Measurement> {
  const started = await run.open(gateway)
  const parts = new Map<string, number[]>()
  const measured = await compareTimes(
    run,
    () => time(run, () => deployOnce(started, parts)),
    () => time(run, () => serveOnce(run, started)),
    { rounds: rounds(run, ROUNDS), settle: () => settle(run) },
  )
  const median = (values: number[]) => values.toSorted((a, b) => a - b)[values.length >> 1]!
  const text = [...parts].map(([part, values]) => `${part} ${median(values).toFixed(0)} ms`).join(', ')
  run.report(`  of it: ${text}`)
  return measured
}

/** Adds how long it had each status. */
async function deployOnce({ client, site, name }: GatewayInstance, parts: Map<string, number[]>): Promise<void> {
  const content = await readFile(path.join(site, 'index.html'))
  const upload = { type: 'files', files: [{ path: 'index.html', content: content.toString('base64') }] }
  const body = { uniqueName: name, displayName: randomUUID(), upload }
  let since = performance.now()
  const add = (part: string) => {
    parts.set(part, [...(parts.get(part) ?? []), performance.now() - since])
    since = performance.now()
  }
  const { projectId, deploymentId } = await client.call<{ projectId: string; deploymentId: string }>(
    'POST',
    '/agent/deploy',
    body,
  )
  add('request')
  for (let current = 'queued'; ; await delay(POLL_MS)) {
    const status = await client.call<Status>('GET', `/agent/deploy/${projectId}/${deploymentId}/status`)
    if (status.status === 'failed') throw new Error(status.reason)
    const next = status.deployment_status ?? status.status
    if (next !== current) add(current)
    current = next
    if (status.status === 'ready') return
  }
}

const STATIC_SERVER = path.join(ROOT, 'gateway/src/deployments/guest/static-server.mjs')

/** What the gateway does for a static site, without recording anything. */
async function serveOnce(run: Run, { api, site }: GatewayInstance): Promise<void> {
  const { id } = await api.create(SHAPE, { rootfs: IMAGE, ingress_enabled: true })
  try {
    await api.putFile(id, '/root/site/index.html', await readFile(path.join(site, 'index.html')))
    await api.putFile(id, '/root/server.mjs', await readFile(STATIC_SERVER))
    const args = ['/root/server.mjs', '/root/site', 'files']
    await api.post(`/v1/sandboxes/${id}/processes`, { cmd: 'node', args, env: { PORT: String(PORT), HOST: '0.0.0.0' } })
    await waitUntilServed(run, await ingressOf(api, id))
  } finally {
    await api.delete(id)
  }
}

async function ingressOf(api: Api, id: string): Promise<Target> {
  const { ingress_url_template } = (await api.get(id)) as unknown as { ingress_url_template: string }
  const url = new URL(ingress_url_template.replace('<port>', String(PORT)))
  return { host: '127.0.0.1', port: Number(url.port), name: url.host }
}

async function measureProxy(run: Run): Promise<Measurement> {
  const { ownApi, appsPort, name } = await run.open(gateway)
  const id = await findSandbox(ownApi)
  await ownApi.patch(id, { ingress_enabled: true })
  const ours = { host: '127.0.0.1', port: appsPort, name: `${name}.apps.localhost:${appsPort}` }
  const baseline = await ingressOf(ownApi, id)
  for (const target of [ours, baseline]) await waitUntilServed(run, target)
  return measureRate(run, ours, baseline)
}

async function findSandbox(api: Api): Promise<string> {
  const { data } = await api.list()
  const found = data.find(({ status, name }) => status === 'running' && name.includes('-run-'))
  if (!found) throw new Error('the app of the gateway has no sandbox')
  return found.id
}
