/**
 * `warren start`: everything on this machine, in the foreground.
 *
 * Order of events: the data directory is ours alone (or somebody else runs on it, and we say so); what a killed
 * predecessor left behind is ended; the ports are free and the machine plays along; the database; the host agent (as
 * root); the control plane; the instance file that others find us by; the lines that people wait for. From then on a
 * part that ends is started again. A signal, at any of these moments, stops all that was begun, in reverse.
 */
import { readFile, statfs } from 'node:fs/promises'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { checkUnprivileged } from '@warren/kit/unprivileged'
import { claimDataDir } from './claim.ts'
import { type Box, type Doors, readBox, readDoors } from './config.ts'
import { type ControlPlane, startControlPlane } from './control-plane.ts'
import { checkDatabase, describeDatabase, type EmbeddedDatabase, startDatabase } from './database.ts'
import { checkDoors } from './doors.ts'
import { canRunVms, type HostAgent, hostSocket, startHostAgent } from './host-agent.ts'
import { type Instance, markOf, removeInstance, writeInstance } from './instance.ts'
import { Kept } from './kept.ts'
import { complain, say, step } from './say.ts'

const STOP_LIMIT_MS = 9_500
/** With less than this PostgreSQL does not even start. */
const DISK_MIN_MIB = 100

export async function startBox(): Promise<void> {
  const startedAt = performance.now()
  const box = readBox()
  const doors = readDoors()
  const stack = new StopStack()
  let stopping = false
  const stop = async (exitCode: number): Promise<never> => {
    stopping = true
    let code = exitCode
    const error = (detail: unknown) => {
      code = 1
      complain('could not stop cleanly', (detail as { err: unknown }).err)
    }
    await stack.run({ error, debug: () => {} }, STOP_LIMIT_MS)
    process.exit(code)
  }
  onStopSignal((signal) => {
    say(`\nStopping (${signal}) …`)
    void stop(0)
  })
  stopWithNpm(() => void stop(0))
  process.on('uncaughtException', (error) => {
    complain('unexpected error, stopping', error)
    void stop(1)
  })
  // Whoever read our lines has gone (`npm start | head`); that is no reason to stop serving.
  process.stdout.on('error', () => {})

  try {
    const controlPlane = await startParts(box, doors, stack)
    await sayReady(box, controlPlane, performance.now() - startedAt)
  } catch (error) {
    if (stopping) return
    process.stdout.write('\n')
    complain('', error)
    await sayDiskFull(box)
    await stop(1)
  }
}

async function startParts(box: Box, doors: Doors, stack: StopStack): Promise<ControlPlane> {
  const instance = await claimDataDir(box)
  stack.add('instance file', () => removeInstance(box))
  await checkDoors(doors)
  await checkUnprivileged()

  const databaseUrl = await startOrCheckDatabase(box, stack)
  const env = controlPlaneEnv(box, databaseUrl)
  const publish = async (part: Partial<Instance>) => writeInstance(box, Object.assign(instance, part))
  const children = new Map<string, number>()
  const publishChild = (name: string) => (pid: number) => {
    children.set(name, pid)
    return publish({ children: [...children.values()].map(markOf).filter((mark) => mark !== undefined) })
  }
  if (canRunVms(process.env)) await startVms(box, stack, publishChild('host agent'))
  const controlPlane = new Kept<ControlPlane>('the control plane', async (before, signal) => {
    const doorsEnv = sameDoors(doors, before)
    const started = await startControlPlane({ ...env, ...doorsEnv }, publishChild('control plane'), signal)
    try {
      await publish({ baseUrl: started.baseUrl, databaseUrl })
      return started
    } catch (error) {
      await started.stop()
      throw error
    }
  })
  stack.add('control plane', () => controlPlane.stop())
  return step('control plane', () => controlPlane.start())
}

/** After the start its progress is news (an image that is ready), before it a line that changes. */
async function startVms(box: Box, stack: StopStack, spawned: (pid: number) => Promise<void>): Promise<void> {
  let progress = (text: string) => say(`  ${text}`)
  const hostAgent = new Kept<HostAgent>('the host agent', (_before, signal) =>
    startHostAgent(box, { spawned, progress: (text) => progress(text) }, signal),
  )
  stack.add('host agent', () => hostAgent.stop())
  const later = progress
  await step('host agent', (tell) => {
    progress = tell
    return hostAgent.start()
  })
  progress = later
}

async function startOrCheckDatabase(box: Box, stack: StopStack): Promise<string> {
  const { databaseUrl } = box
  if (databaseUrl !== undefined) {
    await step('PostgreSQL of DATABASE_URL', () => checkDatabase(databaseUrl))
    return databaseUrl
  }
  const database = new Kept<EmbeddedDatabase>('PostgreSQL', (_before, signal) => startDatabase(box, signal))
  stack.add('PostgreSQL', () => database.stop())
  const started = await step('PostgreSQL', () => database.start())
  return started.databaseUrl
}

const controlPlaneEnv = (box: Box, databaseUrl: string): NodeJS.ProcessEnv => ({
  ...process.env,
  DATABASE_URL: databaseUrl,
  WARREN_LOCAL_USER: 'true',
  WARREN_LOCAL_KEY_FILE: box.keyFile,
  WARREN_INGRESS_CA_DIR: process.env.WARREN_INGRESS_CA_DIR || box.caDir,
  WARREN_HOST_SOCKET: canRunVms(process.env) ? hostSocket(box) : '',
  // Its readiness and the requests are ours to report; the log shows what people should look at.
  WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
})

/** Started again, it listens where it did before, also where the system chose the port: clients know it. */
function sameDoors(doors: Doors, before: ControlPlane | undefined): NodeJS.ProcessEnv {
  if (before === undefined) return {}
  return {
    ...(doors.port === 0 ? { WARREN_PORT: new URL(before.baseUrl).port } : {}),
    ...(doors.ingressPort === 0 ? { WARREN_INGRESS_PORT: String(before.ingressPort ?? 0) } : {}),
    ...(doors.metricsPort === 0 ? { WARREN_METRICS_PORT: new URL(before.metricsUrl).port } : {}),
  }
}

async function sayReady(box: Box, { baseUrl, metricsUrl, ingressUrl }: ControlPlane, tookMs: number): Promise<void> {
  const key = (await readFile(box.keyFile, 'utf8')).trim()
  const database = box.databaseUrl === undefined ? '' : `\n  database   ${describeDatabase(box.databaseUrl)}`
  const ingress = ingressUrl === undefined ? '' : `\n  ingress    ${ingressUrl}`
  say(`
Warren is ready after ${(tookMs / 1000).toFixed(1)} s.

  base URL   ${baseUrl}
  API key    ${key}
  API docs   ${baseUrl}/docs
  metrics    ${metricsUrl}${ingress}
  data       ${box.dataDir}${database}

  curl -H 'X-Api-Key: ${key}' ${baseUrl}/v1/whoami

Ctrl-C stops it.`)
}

/** A full disk shows itself as anything: a log that ends in the middle, a file that is too short. */
async function sayDiskFull(box: Box): Promise<void> {
  const disk = await statfs(box.dataDir).catch(() => undefined)
  const freeMib = disk ? (disk.bavail * disk.bsize) / 2 ** 20 : Number.POSITIVE_INFINITY
  if (freeMib >= DISK_MIN_MIB) return
  say(`\nThe disk of ${box.dataDir} is full (${Math.floor(freeMib)} MiB free). Make room and start again.`)
}

/** npm killed with -9 leaves us behind with nobody to stop us: then we stop ourselves. */
function stopWithNpm(stop: () => void): void {
  if (process.env.npm_lifecycle_event === undefined) return
  const parent = process.ppid
  setInterval(() => {
    if (process.ppid !== parent) stop()
  }, 500).unref()
}
