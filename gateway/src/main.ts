/**
 * The gateway process. It starts in this order and stops in the reverse order: configuration, database, deps, app, sweeps,
 * the proxy of apps, deployments, listener. It needs DATABASE_URL, the control plane and a key for it, the endpoints of both chains and the
 * address that receives payments; without them it says what is missing and exits.
 *
 * With a channel to a parent (kit/src/parent-channel.ts) it reports `listening` or `failed` there, and stops when the channel closes.
 */
import type { AddressInfo } from 'node:net'
import { ConfigError } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createLog, logFormat } from '@warren/kit/log'
import { openParentChannel } from '@warren/kit/parent-channel'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { VERSION } from '@warren/kit/version'
import { buildApp } from './app.ts'
import { startApps } from './apps/start.ts'
import { deleteExpiredNonces } from './auth/nonces.ts'
import { ensureRecipient } from './chains/recipients.ts'
import { type Config, checkConfig, readGatewayConfig } from './config.ts'
import { createDeps } from './create-deps.ts'
import { connectDatabase } from './db/connect.ts'
import { migrate } from './db/migrate.ts'
import { applyCredit } from './deployments/apply-credit.ts'
import { deleteUnusedArtifacts } from './deployments/artifacts.ts'
import { sweepOrphans, sweepSandboxes } from './deployments/sweep-sandboxes.ts'
import { startDeployments } from './deployments/worker.ts'
import { startMetricsServer } from './observe/server.ts'
import { meterProjects } from './payments/meter.ts'
import { deleteExpiredQuotes } from './payments/quotes.ts'
import { recheckPayments } from './payments/recheck.ts'
import { checkSettlerFunds, reconcileSettlements } from './settlements/reconcile.ts'
import { type Sweep, startSweeps } from './sweep.ts'
import { deleteUnusedUploads } from './uploads/store.ts'

type Urls = { url: string; port: number; appsUrl: string; appsPort: number; metricsPort: number }

const SWEEPS: readonly Sweep[] = [
  applyCredit,
  checkSettlerFunds,
  deleteExpiredNonces,
  deleteExpiredQuotes,
  deleteUnusedArtifacts,
  deleteUnusedUploads,
  meterProjects,
  recheckPayments,
  reconcileSettlements,
  sweepOrphans,
  sweepSandboxes,
]
const STOP_LIMIT_MS = 3_000

const config = readConfigOrExit()
const log = createLog({
  name: 'gateway',
  level: config.logLevel,
  format: logFormat(config.logFormat, process.stdout.isTTY),
})
const stack = new StopStack()

onStopSignal(() => void stop(0))
const parent = openParentChannel(() => void stop(0))
process.on('uncaughtException', (error) => die(error))
process.on('unhandledRejection', (error) => die(error))

try {
  const urls = await start()
  parent?.send({ ready: true, listening: true, ...urls })
  log.info({ ...urls, version: VERSION }, 'gateway is ready')
} catch (error) {
  if (parent) parent.send({ failed: errorText(error) })
  else log.fatal({ err: error }, 'failed to start the gateway')
  await stop(1)
}

async function start(): Promise<Urls> {
  if (config.migrate) await migrateDatabase()
  const database = connectDatabase(config.databaseUrl, log)
  stack.add('database', () => database.close())
  const deps = await createDeps({ config, log, database })
  await ensureRecipient(deps)
  const app = await buildApp(deps)
  const sweeps = startSweeps(deps, SWEEPS)
  stack.add('sweeps', () => sweeps.stop())
  const apps = await startApps(deps)
  stack.add('apps', () => apps.close())
  const metrics = await startMetricsServer(deps)
  stack.add('metrics', () => metrics.close())
  const deployments = startDeployments(deps)
  stack.add('deployments', () => deployments.stop())
  await app.listen({ host: config.host, port: config.port })
  stack.add('http', () => app.close())
  const { port } = app.server.address() as AddressInfo
  deps.address.setPort(port)
  const appsUrl = `https://<uniqueName>.${deps.apps.urlDomain}`
  return { url: deps.address.url, port, appsUrl, appsPort: apps.port, metricsPort: metrics.port }
}

/** On separate connections, without the query timeouts of requests: a migration may take long. */
async function migrateDatabase(): Promise<void> {
  const database = connectDatabase(config.databaseUrl, log, { max: 4, queryLimitMs: 0 })
  try {
    await migrate(database)
  } finally {
    await database.close()
  }
}

async function stop(exitCode: number): Promise<never> {
  await stack.run(log, STOP_LIMIT_MS)
  process.exit(exitCode)
}

/** After an unexpected error the state in memory cannot be trusted. Everything that must survive is in the database. */
function die(error: unknown): never {
  log.fatal({ err: error }, 'unexpected error, exiting')
  process.exit(70)
}

function readConfigOrExit(): Config {
  try {
    const config = readGatewayConfig(process.env)
    checkConfig(config)
    return config
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`gateway: ${error.message}\n`)
    process.exit(78)
  }
}
