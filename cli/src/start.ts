/**
 * `warren start`: runs everything on this machine, in the foreground.
 *
 * Order of events: lock the data directory, or fail if another Warren runs on it; stop services that a killed
 * predecessor left running; check ports and the jail of services; start the database and the host agent (as root) at the same
 * time, and the control plane as soon as the database is ready; when all are, let the control plane find the host; start
 * the deployment gateway, with a development chain if it has no other; write the instance file, by which other commands
 * find this instance; print the base URL and the API key. From then on a service that ends is restarted. A signal, at any
 * of these moments, stops everything that was started, in reverse order.
 */

import { readFile, statfs } from 'node:fs/promises'
import { abortable } from '@warren/kit/abortable'
import { checkJail } from '@warren/kit/confine/check-jail'
import { keepReserve } from '@warren/kit/postgres/reserve-file'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { VERSION } from '@warren/kit/version'
import { warrenCommand } from '@warren/kit/warren-command'
import { checkPorts } from './check-ports.ts'
import { compileCacheDir, pruneCompileCache } from './compile-cache.ts'
import { CACHE_DIR, type InstanceConfig, type Listeners, ROOT, readInstanceConfig, readListeners } from './config.ts'
import { type ControlPlane, listen, prepareControlPlane } from './control-plane.ts'
import { ensureDataDirId } from './data-dir-id.ts'
import { giveKeys, isRoot, publishKeys, serviceKeyFile } from './data-layout.ts'
import { checkDatabase, describeDatabase, type EmbeddedDatabase, startDatabase } from './database.ts'
import {
  type DevelopmentChain,
  type Gateway,
  type GatewayAccess,
  planGateway,
  startDevelopmentChain,
  startGateway,
  walletKeyFile,
} from './gateway.ts'
import {
  canRunVms,
  cleanUpAfterHostAgent,
  type HostAgent,
  hostSocket,
  openApiPort,
  removeSocketFolder,
  startHostAgent,
} from './host-agent.ts'
import { findProcess, type Instance, removeInstanceFile, writeInstanceFile } from './instance-file.ts'
import { lockDataDir } from './lock-data-dir.ts'
import { migrateDatabase } from './migrate.ts'
import { print, printBackgroundProgress, printError, printStep } from './output.ts'
import { checkSocketFolder, serviceEnv } from './service-env.ts'
import { Supervisor } from './supervisor.ts'

/**
 * The services limit their own stops so that all of them together end within 10 s. The rest is for cleaning up after a
 * host agent that hung or was killed.
 */
const STOP_LIMIT_MS = 30_000
/** Of it, so that a service that hangs cannot use up the time of the next one. */
const RESERVED_MS = { hostAgent: 5_500, cleanUp: 20_000, database: 1_000 }
/** PostgreSQL does not start with less free space than this. */
const DISK_MIN_MIB = 100

export async function startInstance(): Promise<void> {
  const startedAt = performance.now()
  const config = readInstanceConfig()
  const listeners = readListeners()
  const stack = new StopStack()
  let stopping = false
  const stop = async (exitCode: number): Promise<never> => {
    stopping = true
    let code = exitCode
    const error = (detail: unknown) => {
      code = 1
      const { err, step } = detail as { err: unknown; step: string }
      printError(`failed to stop ${step}`, err)
    }
    await stack.run({ error, debug: () => {} }, STOP_LIMIT_MS)
    process.exit(code)
  }
  onStopSignal((signal) => {
    print(`\nStopping (${signal}) …`)
    void stop(0)
  })
  stopWithNpm(() => void stop(0))
  process.on('uncaughtException', (error) => {
    printError('unexpected error, stopping', error)
    void stop(1)
  })
  // If the reader of stdout exits (`npm start | head`), Warren keeps serving. After the terminal was closed, every write
  // fails; without a handler the error would be printed, which fails again, and so on without an end.
  for (const stream of [process.stdout, process.stderr]) stream.on('error', () => {})

  try {
    const services = await startServices(config, listeners, stack)
    await printReady(config, services, performance.now() - startedAt)
    void pruneOwnCompileCache()
  } catch (error) {
    if (stopping) return
    print('')
    printError('', error)
    await printIfDiskIsFull(config)
    await stop(1)
  }
}

type Deployments = { gateway: Gateway; chain: DevelopmentChain | undefined }
type Services = { controlPlane: ControlPlane; deployments: Deployments | undefined }

async function startServices(config: InstanceConfig, listeners: Listeners, stack: StopStack): Promise<Services> {
  const instance = await lockDataDir(config)
  stack.add('the instance file', () => removeInstanceFile(config))
  const hasGateway = planGateway(process.env).kind !== 'off'
  // One after the other: a port in use ends this process, which must not leave the program of the other check running.
  await checkPorts(listeners, { servesGuests: canRunVms(process.env), hasGateway })
  await checkJail(config.dataDir)
  if (isRoot()) {
    checkSocketFolder(config.databaseUrl ?? '', 'DATABASE_URL')
    checkSocketFolder(config.migrateDatabaseUrl ?? '', 'WARREN_MIGRATE_DATABASE_URL')
  }
  if (config.databaseUrl !== undefined) await checkExternalDatabase(config.databaseUrl)

  if (isRoot()) await giveKeys(config)

  const publish = async (changes: Partial<Instance>) => writeInstanceFile(config, Object.assign(instance, changes))
  const children = new Map<string, number>()
  const publishChild = (name: string) => (pid: number) => {
    children.set(name, pid)
    return publish({ children: [...children.values()].map(findProcess).filter((child) => child !== undefined) })
  }
  const api = { port: listeners.port }
  // All are added to the stack before any of them starts, so that a failure of one stops the others, in this order.
  const startTheDatabase = superviseDatabase(config, stack)
  const hostAgents = canRunVms(process.env)
    ? superviseHostAgent(config, api, stack, publishChild('host agent'))
    : undefined
  let databaseUrl = ''
  // The embedded database has a record in the data directory instead (database-record.ts).
  const dataDirId = config.databaseUrl === undefined ? '' : await ensureDataDirId(config)
  const controlPlane = new Supervisor<ControlPlane>('the control plane', async (previous, signal) => {
    const access = await migrateDatabase(config, databaseUrl, 'control-plane', signal)
    const own = {
      ...access.env,
      ...samePorts(listeners, previous),
      WARREN_DATA_DIR: config.dataDir,
      WARREN_DATA_DIR_ID: dataDirId,
    }
    const env = { ...controlPlaneEnv(config, access.databaseUrl), ...own }
    const prepared = await prepareControlPlane(config, env, publishChild('control plane'), signal)
    try {
      await publishKeys(config)
      // A stop ends the control plane before the host agent, so it must not wait for that one's start.
      if (hostAgents) await abortable(hostAgents.started, signal)
      const started = await listen(prepared)
      if (api.port === 0) {
        api.port = started.port
        const current = hostAgents?.current()
        if (current) await openApiPort(current, api.port)
      }
      await publish({ baseUrl: started.baseUrl, databaseUrl })
      return started
    } catch (error) {
      await prepared.stop()
      throw error
    }
  })
  stack.add('the control plane', () => controlPlane.stop())
  const startControlPlaneOnDatabase = async () => {
    databaseUrl = await startTheDatabase()
    return printStep('control plane', () => controlPlane.start())
  }
  const [started] = await Promise.all([startControlPlaneOnDatabase(), hostAgents?.started])
  const deployments = await superviseGateway(
    config,
    () => ({ databaseUrl, baseUrl: controlPlane.current?.baseUrl ?? started.baseUrl }),
    stack,
    publishChild,
  )
  if (deployments) {
    const { gateway, chain } = deployments
    const development = chain && { rpcUrl: chain.rpcArbitrum, keyFile: walletKeyFile(config) }
    await publish({ gatewayUrl: gateway.url, ...(development ? { gatewayDevelopment: development } : {}) })
  }
  return { controlPlane: started, deployments }
}

/** Last, because it uses the API from its start. */
async function superviseGateway(
  config: InstanceConfig,
  access: () => Omit<GatewayAccess, 'chain'>,
  stack: StopStack,
  publishChild: (name: string) => (pid: number) => Promise<void>,
): Promise<Deployments | undefined> {
  const plan = planGateway(process.env)
  if (plan.kind === 'off') {
    if (plan.missing.length > 0) print(`The deployment gateway stays off: ${plan.missing.join(', ')} not set.`)
    return undefined
  }
  const chains = new Supervisor<DevelopmentChain>('the development chain', (previous, signal) =>
    startDevelopmentChain(config, previous, publishChild('development chain'), signal),
  )
  const gateways = new Supervisor<Gateway>('the gateway', (previous, signal) => {
    const chain = plan.kind === 'development' ? chains.current : undefined
    return startGateway(config, { ...access(), chain }, previous, publishChild('gateway'), signal)
  })
  stack.add('the development chain', () => chains.stop())
  stack.add('the gateway', () => gateways.stop())
  if (plan.kind === 'production')
    return { gateway: await printStep('gateway', () => gateways.start()), chain: undefined }
  try {
    const chain = await printStep('development chain', () => chains.start())
    return { gateway: await printStep('gateway', () => gateways.start()), chain }
  } catch (error) {
    if ((error as Error).name === 'AbortError') throw error
    // The operator has not asked for it, and everything else works without it: there is no anvil for some machines.
    printError('the deployment gateway stays off', error)
    return undefined
  }
}

const EMULATED = `  Without KVM, guests are emulated (TCG). That is slow, and it is not a security boundary: run only code that you trust
  like your own. With users besides the local one, creates are refused unless WARREN_ALLOW_TCG_TENANTS=yes.`

/**
 * While it starts, its progress is shown in the step's line; later (an image is ready) on separate lines. `api.port` is read
 * at each start, because the system may choose the port.
 */
function superviseHostAgent(
  config: InstanceConfig,
  api: { port: number },
  stack: StopStack,
  onSpawn: (pid: number) => Promise<void>,
): { started: Promise<HostAgent>; current: () => HostAgent | undefined } {
  let onProgress = printBackgroundProgress
  // Whether a host agent has run and did not stop properly: it was killed, or some part did not stop in time.
  let isClean = true
  const onStart = (pid: number) => {
    isClean = false
    return onSpawn(pid)
  }
  const onExit = (exit: { isClean: boolean }) => {
    isClean = exit.isClean
  }
  const callbacks = { onSpawn: onStart, onProgress: (text: string) => onProgress(text), onExit }
  const hostAgent = new Supervisor<HostAgent>('the host agent', (_previous, signal) =>
    startHostAgent(config, api.port, callbacks, signal),
  )
  stack.add('the socket of the host agent', () => removeSocketFolder(config))
  stack.add('what the host agent left', async () => isClean || cleanUpAfterHostAgent(config), RESERVED_MS.cleanUp)
  stack.add('the host agent', () => hostAgent.stop(), RESERVED_MS.hostAgent)
  const started = printStep('host agent', async (progress) => {
    onProgress = progress
    try {
      return await hostAgent.start()
    } finally {
      onProgress = printBackgroundProgress
    }
  })
  started.then(({ accel }) => accel === 'tcg' && print(EMULATED)).catch(() => {}) // As below.
  started.catch(() => {}) // The caller awaits it; the control plane may fail before.
  return { started, current: () => hostAgent.current }
}

const checkExternalDatabase = (databaseUrl: string): Promise<void> =>
  printStep('PostgreSQL of DATABASE_URL', () => checkDatabase(databaseUrl))

/** Returns a function that starts the embedded database, unless the operator runs one, and returns its URL. */
function superviseDatabase(config: InstanceConfig, stack: StopStack): () => Promise<string> {
  const { databaseUrl } = config
  if (databaseUrl !== undefined) return async () => databaseUrl
  const database = new Supervisor<EmbeddedDatabase>('PostgreSQL', (_previous, signal) => startDatabase(config, signal))
  const reserve = keepReserve(config.databaseDir, (text) => printError('', new Error(text)))
  stack.add('the space reserved for PostgreSQL', () => reserve.stop())
  stack.add('PostgreSQL', () => database.stop(), RESERVED_MS.database)
  return async () => (await printStep('PostgreSQL', () => database.start())).databaseUrl
}

const controlPlaneEnv = (config: InstanceConfig, databaseUrl: string): NodeJS.ProcessEnv => ({
  ...serviceEnv('control-plane', { databaseUrl, isExternal: config.databaseUrl !== undefined }),
  WARREN_LOCAL_USER: 'true',
  WARREN_LOCAL_KEY_FILE: serviceKeyFile(config, config.keyFile),
  WARREN_SECRETS_KEY_FILE: serviceKeyFile(config, config.secretsKeyFile),
  // The account of the gateway exists only where there is one.
  WARREN_GATEWAY_KEY_FILE: planGateway(process.env).kind === 'off' ? '' : serviceKeyFile(config, config.gatewayKeyFile),
  WARREN_INGRESS_CA_DIR: config.caDir,
  WARREN_HOST_SOCKET: canRunVms(process.env) ? hostSocket(config) : '',
  // The host agent has set up the address at which sandboxes see this machine.
  WARREN_SERVE_GUESTS: canRunVms(process.env) ? 'true' : 'false',
  // Readiness is printed here and requests are of no interest on a terminal, so only warnings are logged.
  WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
})

/** A restarted control plane listens on the ports that the system chose at the first start, because clients use them. */
function samePorts(listeners: Listeners, previous: ControlPlane | undefined): NodeJS.ProcessEnv {
  if (previous === undefined) return {}
  return {
    ...(listeners.port === 0 ? { WARREN_PORT: String(previous.port) } : {}),
    ...(listeners.ingressPort === 0 ? { WARREN_INGRESS_PORT: String(previous.ingressPort ?? 0) } : {}),
    ...(listeners.metricsPort === 0 ? { WARREN_METRICS_PORT: URL.parse(previous.metricsUrl)?.port ?? '0' } : {}),
  }
}

async function printReady(
  config: InstanceConfig,
  { controlPlane: { baseUrl, metricsUrl, ingressUrl }, deployments }: Services,
  tookMs: number,
): Promise<void> {
  // Output that is not a terminal is often kept or shown to others, as a log: it names the file instead.
  const isTerminal = process.stdout.isTTY === true
  const key = isTerminal ? (await readFile(config.keyFile, 'utf8')).trim() : `$(cat ${config.keyFile})`
  const database = config.databaseUrl === undefined ? '' : `\n  database   ${describeDatabase(config.databaseUrl)}`
  const ingress = ingressUrl === undefined ? '' : `\n  ingress    ${ingressUrl}`
  const gateway = deployments === undefined ? '' : renderGateway(deployments)
  print(`
Warren ${VERSION} is ready after ${(tookMs / 1000).toFixed(1)} s.

  base URL   ${baseUrl}
  API key    ${isTerminal ? key : `in ${config.keyFile}`}
  API docs   ${baseUrl}/docs
  metrics    ${metricsUrl}${ingress}${gateway}
  data       ${config.dataDir}${database}

  curl -H "X-Api-Key: ${key}" ${baseUrl}/v1/whoami

Ctrl-C stops it.`)
}

function renderGateway({ gateway, chain }: Deployments): string {
  const hint = `\n             development chain: its money is worth nothing. Try ${warrenCommand()} gateway demo`
  return `\n  gateway    ${gateway.url}, apps at ${gateway.appsUrl}${chain ? hint : ''}`
}

/** On a full disk the error above can be anything, such as a truncated file, so the cause is stated. */
async function printIfDiskIsFull(config: InstanceConfig): Promise<void> {
  const disk = await statfs(config.dataDir).catch(() => undefined)
  const freeMib = disk ? (disk.bavail * disk.bsize) / 2 ** 20 : Number.POSITIVE_INFINITY
  if (freeMib >= DISK_MIN_MIB) return
  print(`\nThe disk of ${config.dataDir} is full (${Math.floor(freeMib)} MiB free). Free some space and start again.`)
}

/** Not a folder that the user chose with NODE_COMPILE_CACHE. */
async function pruneOwnCompileCache(): Promise<void> {
  const own = compileCacheDir(CACHE_DIR, ROOT)
  if (process.env.NODE_COMPILE_CACHE !== own) return
  await pruneCompileCache(own).catch((error) => printError('failed to remove unused compiled code', error))
}

/** npm killed with SIGKILL cannot forward a signal, so Warren stops when its parent process changes. */
function stopWithNpm(stop: () => void): void {
  if (process.env.npm_lifecycle_event === undefined) return
  const parent = process.ppid
  setInterval(() => {
    if (process.ppid !== parent) stop()
  }, 500).unref()
}
