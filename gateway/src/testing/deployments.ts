/** A gateway that carries deployments out, on a control plane with a fake host: programs run as processes of this machine. */
import { fork } from 'node:child_process'
import { once } from 'node:events'
import net, { type AddressInfo } from 'node:net'
import { after } from 'node:test'
import { fileURLToPath } from 'node:url'
import { until } from '@warren/kit/testing/until'
import type { Config } from '../config.ts'
import type { Database } from '../db/connect.ts'
import { applyCredit } from '../deployments/apply-credit.ts'
import { sweepSandboxes } from '../deployments/sweep-sandboxes.ts'
import { startDeployments } from '../deployments/worker.ts'
import { startSweeps } from '../sweep.ts'
import { createTestGateway, type TestGateway, type TestOptions } from './app.ts'
import { createTestDatabase } from './database.ts'
import { deployBody, sendDeploy } from './deploys.ts'
import { createTestWallet, type TestWallet } from './wallet.ts'

const HOSTED = fileURLToPath(new URL('../../../control-plane/src/testing/hosted-process.ts', import.meta.url))

export type ControlPlaneProcess = { controlPlaneUrl: string; apiKey: string }

/** Ended with the test file, together with the programs in its sandboxes. */
export async function startControlPlane(database: Database): Promise<ControlPlaneProcess> {
  const child = fork(HOSTED, {
    // With the test runner's variable the child would behave like a test file.
    env: { ...process.env, NODE_TEST_CONTEXT: undefined, DATABASE_URL: database.url },
  })
  after(async () => {
    if (child.exitCode !== null) return
    child.disconnect()
    await once(child, 'exit')
  })
  const [{ port, key }] = (await once(child, 'message')) as [{ port: number; key: string }]
  return { controlPlaneUrl: `http://127.0.0.1:${port}`, apiKey: key }
}

/** Times are short, so that failures are soon certain. */
export const deploymentConfig = (controlPlane: ControlPlaneProcess): Partial<Config> => ({
  ...controlPlane,
  standardImage: 'debian:13',
  runShape: 's-1vcpu-256mb',
  buildShape: 's-1vcpu-256mb',
  healthSeconds: 20,
  drainSeconds: 1,
  leaseSeconds: 2,
})

export type DeploymentGateway = TestGateway & { controlPlane: ControlPlaneProcess; stop(): Promise<void> }

export async function createDeploymentGateway(
  options: TestOptions & { controlPlane?: ControlPlaneProcess } = {},
): Promise<DeploymentGateway> {
  // Hooks run in the order in which they are added: this one before those that close the database.
  let stop = async () => {}
  after(() => stop())
  const database = options.database ?? (await createTestDatabase())
  const controlPlane = options.controlPlane ?? (await startControlPlane(database))
  const config = { ...deploymentConfig(controlPlane), ...options.config }
  const gateway = await createTestGateway({ ...options, database, config })
  const worker = startDeployments(gateway.deps)
  const sweeps = startSweeps(gateway.deps, [
    { ...sweepSandboxes, everyMs: 200 },
    { ...applyCredit, everyMs: 200 },
  ])
  stop = async () => {
    stop = async () => {}
    await worker.stop()
    await sweeps.stop()
  }
  return { ...gateway, controlPlane, stop: () => stop() }
}

export async function freePort(): Promise<number> {
  const server = net.createServer().listen(0, '127.0.0.1')
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  server.close()
  return port
}

/** A wallet whose pool has this much, as if it had paid. */
export async function createWalletWithCredit(
  { deps }: Pick<TestGateway, 'deps'>,
  micro = 100_000_000n,
): Promise<TestWallet> {
  const wallet = createTestWallet()
  await addCredit({ deps }, wallet, micro)
  return wallet
}

let hashes = 0

export async function addCredit({ deps }: Pick<TestGateway, 'deps'>, wallet: TestWallet, micro: bigint): Promise<void> {
  const address = wallet.address.toLowerCase()
  const hash = `0x${(++hashes).toString(16).padStart(64, '0')}`
  await deps.database.pool.query('insert into gateway.wallets (address) values ($1) on conflict do nothing', [address])
  await deps.database.pool.query(
    `insert into gateway.payments (hash, wallet, chain, token, amount_micro, block_number, block_hash, status, unique_name, months)
     values ($1, $2, 'arbitrum', 'usdc', $3, 1, 'x', 'safe', 'x', 1)`,
    [hash, address, micro],
  )
  await deps.database.pool.query(
    `insert into gateway.ledger (wallet, amount_micro, kind, payment_hash) values ($1, $2, 'payment', $3)`,
    [address, micro, hash],
  )
  await deps.database.pool.query('update gateway.wallets set unpaid_since = null where address = $1', [address])
}

export const filesOf = (files: Record<string, string>) => ({
  type: 'files',
  files: Object.entries(files).map(([path, text]) => ({ path, content: Buffer.from(text).toString('base64') })),
})

export type Deployed = { projectId: string; deploymentId: string; uniqueName: string }

export async function deployFiles(
  gateway: TestGateway,
  wallet: TestWallet,
  files: Record<string, string>,
  more: Record<string, unknown> = {},
): Promise<Deployed> {
  const body = deployBody({ upload: filesOf(files), ...more })
  const { status, body: answer } = await sendDeploy(gateway, wallet, body, { 'x-use-existing-credits': 'true' })
  if (status !== 200) throw new Error(`deploy answered ${status}: ${JSON.stringify(answer)}`)
  return { projectId: answer.projectId, deploymentId: answer.deploymentId, uniqueName: body.uniqueName }
}

export const signedGet = async (gateway: TestGateway, wallet: TestWallet, url: string, method = 'GET') =>
  gateway.request({ method, url, headers: await wallet.sign({ nowMs: gateway.deps.now().getTime() }) })

export const readStatus = async (gateway: TestGateway, wallet: TestWallet, { projectId, deploymentId }: Deployed) =>
  (await signedGet(gateway, wallet, `/agent/deploy/${projectId}/${deploymentId}/status`)).body

/** Polls as clients do. */
export async function waitForOutcome(gateway: TestGateway, wallet: TestWallet, deployed: Deployed) {
  try {
    return await until(async () => {
      const answer = await readStatus(gateway, wallet, deployed)
      return answer.status !== 'deploying' && answer
    }, 'the deployment has an outcome')
  } catch (error) {
    const lines = await readLog(gateway, wallet, deployed)
    throw new Error(`its log is\n${lines.map(({ text }) => text).join('\n')}`, { cause: error })
  }
}

export async function readLog(gateway: TestGateway, wallet: TestWallet, deployed: Deployed, after = 0) {
  const url = `/agent/deploy/${deployed.projectId}/${deployed.deploymentId}/logs?after=${after}`
  const { body, status } = await signedGet(gateway, wallet, url)
  if (status !== 200) throw new Error(`logs answered ${status}`)
  const lines = String(body).split('\n').filter(Boolean)
  return lines.map((line) => JSON.parse(line) as { seq: number; source: string; stream: string; text: string })
}

/** All sandboxes of the account that exist. */
export const listSandboxes = ({ deps }: Pick<TestGateway, 'deps'>) => deps.controlPlane.listSandboxes()
