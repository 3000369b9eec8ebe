/**
 * The control plane process. It starts in this order and stops in the reverse order: configuration, secrets key, database, deps, app,
 * worker, webhooks, ingress, API listener.
 *
 * Under `warren start` it has a channel to its parent (kit/src/parent-channel.ts). It sends `ready` when it could listen, and listens when the
 * parent sends `listen`: the host agent starts at the same time and adds the address at which sandboxes reach the API. It
 * stops when the channel closes, because then the parent has exited.
 *
 * It can also run alone, in several copies on one database; it then needs DATABASE_URL and WARREN_SECRETS_KEY only.
 */

import { randomUUID } from 'node:crypto'
import { ConfigError } from '@warren/kit/config'
import { errorText } from '@warren/kit/error-text'
import { createLog, type Log, logFormat } from '@warren/kit/log'
import { openParentChannel, type ParentChannel } from '@warren/kit/parent-channel'
import { withMigrationLock } from '@warren/kit/postgres/migrations'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { VERSION } from '@warren/kit/version'
import { warrenCommand } from '@warren/kit/warren-command'
import { buildApp } from './app.ts'
import { type Config, readControlPlaneConfig } from './config.ts'
import { createDeps } from './create-deps.ts'
import { connectDatabase } from './db/connect.ts'
import { migrate } from './db/migrate.ts'
import { bindDataDirectory } from './hosts/data-directory.ts'
import { watchHosts } from './hosts/heartbeat.ts'
import { CredentialCache } from './http/credential-cache.ts'
import { listenForRequests } from './http/listen.ts'
import { watchCredentialChanges } from './http/watch-credentials.ts'
import { startIngress } from './ingress/start.ts'
import { JOBS, SWEEPS } from './jobs/registry.ts'
import { startWorker } from './jobs/worker.ts'
import { createMetrics } from './observe/metrics.ts'
import { startOperatorServer } from './observe/server.ts'
import { startTracing } from './observe/tracing.ts'
import { keySourceOf } from './secrets/key-source.ts'
import type { Secrets } from './secrets/secrets.ts'
import { findKeys, registerKeys } from './secrets/start.ts'
import { ensureGatewayUser, ensureLocalUser } from './users/service-users.ts'
import { startDeliverer } from './webhooks/deliverer.ts'

type Urls = { baseUrl: string; port: number; metricsUrl: string; ingressUrl?: string; ingressPort?: number }

/** `warren start` stops all processes within 10 s, of which the host agent may need more than half. */
const STOP_LIMIT_MS = 3_000

const config = readConfigOrExit()
const log = createLog({
  name: 'control-plane',
  level: config.logLevel,
  format: logFormat(config.logFormat, process.stdout.isTTY),
})
const stack = new StopStack()

onStopSignal(() => void stop(0))
const parent = openParentChannel(() => void stop(0))
process.on('uncaughtException', (error) => die(error))
process.on('unhandledRejection', (error) => die(error))

try {
  const { listen } = await start(config, log, stack)
  if (parent) await waitForListen(parent)
  const urls = await listen()
  parent?.send({ listening: true, ...urls })
  log.info({ ...urls, version: VERSION }, 'control plane is ready')
} catch (error) {
  // The parent reports the failure to the user; without a parent, the log does.
  if (parent) parent.send({ failed: errorText(error) })
  else log.fatal({ err: error }, 'failed to start the control plane')
  await stop(1)
}

function waitForListen(launcher: ParentChannel): Promise<void> {
  const { promise, resolve } = Promise.withResolvers<void>()
  launcher.onMessage((message) => (message as { listen?: true }).listen && resolve())
  launcher.send({ ready: true })
  return promise
}

/** Starts everything but the API listener. */
async function start(config: Config, log: Log, stack: StopStack): Promise<{ listen(): Promise<Urls> }> {
  const secrets = await openSecrets(config, log)
  const database = connectDatabase(config.databaseUrl, log)
  stack.add('database', () => database.close())
  const deps = createDeps({
    config,
    log,
    database,
    credentials: new CredentialCache(),
    metrics: createMetrics(database.pool),
    processId: randomUUID(),
    secrets,
  })
  const { hostSocket, hostId, dataDirId, dataDir, adoptDatabase } = config
  if (hostSocket !== '' && dataDirId !== '') {
    await bindDataDirectory(deps.db, { hostId, id: dataDirId, folder: dataDir }, adoptDatabase)
  }
  stack.add('hosts', () => deps.hosts.close())
  stack.add('audit log', () => deps.audit.close())
  stack.add('token streams', () => deps.tokenStreams.close())
  if (config.localUser) await ensureLocalUser(deps.db, config.localKeyFile)
  if (config.gatewayKeyFile !== '') await ensureGatewayUser(deps.db, config.gatewayKeyFile)

  const tracing = await startTracing(config.otlpEndpoint, log)
  if (tracing) stack.add('tracing', () => tracing.stop())
  const operator = await startOperatorServer(deps, { host: config.metricsHost, port: config.metricsPort })
  stack.add('operator port', () => operator.close())

  const app = await buildApp(deps, tracing)
  const credentialChanges = watchCredentialChanges(deps)
  stack.add('credential changes', () => credentialChanges.close())
  const worker = await startWorker(deps, { jobs: JOBS, sweeps: SWEEPS })
  stack.add('worker', () => worker.stop())
  const deliverer = startDeliverer(deps)
  stack.add('webhooks', () => deliverer.stop())

  const ingress = config.ingress ? await startIngress(deps) : undefined
  if (ingress) stack.add('ingress', () => ingress.close())

  const urls = {
    metricsUrl: `${operator.url}/metrics`,
    ...(ingress
      ? { ingressUrl: `https://<id>-<port>.${deps.ingressAddress.urlDomain}`, ingressPort: ingress.port }
      : {}),
  }
  return {
    async listen() {
      // First, so that a create right after the start finds the host.
      await watchHosts.run(deps)
      const listening = await listenForRequests(app, config)
      stack.add('http', () => listening.close())
      return { baseUrl: listening.baseUrl, port: listening.port, ...urls }
    },
  }
}

/** On separate connections, without the query timeouts of requests: a migration may take long. */
async function openSecrets(config: Config, log: Log): Promise<Secrets> {
  const database = connectDatabase(config.databaseUrl, log, { max: 4, queryLimitMs: 0 })
  try {
    const source = keySourceOf(config)
    const keys = await findKeys(database, source)
    let secrets: Secrets | undefined
    const register = async () => {
      secrets = await registerKeys(database, keys, source)
    }
    if (config.migrate) await migrate(database, register)
    else await withMigrationLock(database.pool, register)
    return secrets! // Set by the function above, which has run.
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
    const config = readControlPlaneConfig(process.env)
    if (config.databaseUrl === '')
      throw new ConfigError(`DATABASE_URL is not set (${warrenCommand()} start sets it to the embedded database)`)
    return config
  } catch (error) {
    if (!(error instanceof ConfigError)) throw error
    process.stderr.write(`control plane: ${error.message}\n`)
    process.exit(78)
  }
}
