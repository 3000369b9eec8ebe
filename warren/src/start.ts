/**
 * `warren start`: everything on this machine, in the foreground.
 *
 * Order of events: the data directory is ours alone (or somebody else runs on it, and we say so); what a killed
 * predecessor left behind is ended; the database; the control plane; the instance file that others find us by; the
 * lines that people wait for. From then on a part that ends is started again. A signal stops all in reverse.
 */
import { mkdir, readFile } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { onStopSignal, StopStack } from '@warren/kit/stop'
import { errorText } from '@warren/kit/text'
import { type Box, readBox } from './config.ts'
import { type ControlPlane, startControlPlane } from './control-plane.ts'
import { type EmbeddedDatabase, startDatabase } from './database.ts'
import { type Instance, isAlive, markOf, readInstance, removeInstance, writeInstance } from './instance.ts'
import { say, step } from './say.ts'

const STOP_LIMIT_MS = 9_500
const RESTART_MS = 500
const RESTART_MAX_MS = 10_000

type Parts = { box: Box; instance: Instance; database: EmbeddedDatabase | undefined; controlPlane: ControlPlane }

export async function startBox(): Promise<void> {
  const startedAt = performance.now()
  const box = readBox()
  const stack = new StopStack()
  const stopping = new AbortController()
  const stop = async (exitCode: number): Promise<never> => {
    stopping.abort()
    await stack.run({ error: complain, debug: () => {} }, STOP_LIMIT_MS)
    process.exit(exitCode)
  }
  onStopSignal((signal) => {
    say(`stopping (${signal})`)
    void stop(0)
  })
  stopWithNpm(() => void stop(0))

  try {
    const parts = await startParts(box, stack)
    await sayReady(parts, performance.now() - startedAt)
    void keepDatabase(parts, stopping.signal)
    void keepControlPlane(parts, stopping.signal)
  } catch (error) {
    if (stopping.signal.aborted) return
    process.stderr.write(`\nwarren: ${errorText(error)}\n`)
    await stop(1)
  }
}

async function startParts(box: Box, stack: StopStack): Promise<Parts> {
  await mkdir(box.dataDir, { recursive: true, mode: 0o700 })
  const instance = await claimDataDir(box)
  stack.add('instance file', () => removeInstance(box))

  const database = box.databaseUrl ? undefined : await step('PostgreSQL', () => startDatabase(box))
  const parts = { box, instance, database } as Parts
  // By the field, not the value: a part that was restarted meanwhile is the one to stop.
  stack.add('PostgreSQL', () => parts.database?.stop())
  parts.controlPlane = await step('control plane', () => startControlPlane(controlPlaneEnv(parts)))
  stack.add('control plane', () => parts.controlPlane.stop())
  await publish(parts)
  return parts
}

/** Ours, unless a live launcher holds it. What a dead one left behind is ended first. */
async function claimDataDir(box: Box): Promise<Instance> {
  const found = await readInstance(box)
  if (found && isAlive(found)) {
    throw new Error(
      `Warren already runs on ${box.dataDir} (pid ${found.pid}${found.baseUrl ? `, ${found.baseUrl}` : ''})`,
    )
  }
  for (const child of found?.children ?? []) {
    // It noticed that its parent is gone and is stopping; it gets the time to do so.
    for (let waited = 0; isAlive(child) && waited < 8_000; waited += 50) await delay(50)
    if (isAlive(child)) process.kill(child.pid, 'SIGKILL')
  }
  const instance: Instance = { ...markOf(process.pid)!, children: [] }
  await writeInstance(box, instance)
  const kept = await readInstance(box)
  if (kept?.pid !== process.pid) throw new Error(`another start took ${box.dataDir} at the same moment`)
  return instance
}

function controlPlaneEnv({ box, database }: Parts): NodeJS.ProcessEnv {
  return {
    ...process.env,
    DATABASE_URL: database?.databaseUrl ?? box.databaseUrl,
    WARREN_LOCAL_USER: 'true',
    WARREN_LOCAL_KEY_FILE: box.keyFile,
    // Its readiness and the requests are ours to report; the log shows what people should look at.
    WARREN_LOG_LEVEL: process.env.WARREN_LOG_LEVEL || 'warn',
  }
}

async function publish(parts: Parts): Promise<void> {
  const mark = markOf(parts.controlPlane.pid)
  Object.assign(parts.instance, {
    children: mark ? [mark] : [],
    baseUrl: parts.controlPlane.baseUrl,
    databaseUrl: parts.database?.databaseUrl ?? parts.box.databaseUrl,
  })
  await writeInstance(parts.box, parts.instance)
}

/** Restarted at once: the control plane answers 503 in the meantime and recovers by itself. */
async function keepDatabase(parts: Parts, stopping: AbortSignal): Promise<void> {
  while (parts.database && !stopping.aborted) {
    await parts.database.exited
    if (stopping.aborted) return
    say('PostgreSQL ended, starting it again')
    const restarted = await persist('PostgreSQL', () => startDatabase(parts.box), stopping)
    if (!restarted) return
    parts.database = restarted
    if (stopping.aborted) await restarted.stop()
  }
}

async function keepControlPlane(parts: Parts, stopping: AbortSignal): Promise<void> {
  while (!stopping.aborted) {
    const how = await parts.controlPlane.exited
    if (stopping.aborted) return
    say(`the control plane ended (${how}), starting it again`)
    // On the port it had: clients know it.
    const env = {
      ...controlPlaneEnv(parts),
      WARREN_PORT: process.env.WARREN_PORT || portOf(parts.controlPlane.baseUrl),
    }
    const restarted = await persist('the control plane', () => startControlPlane(env), stopping)
    if (!restarted) return
    parts.controlPlane = restarted
    if (stopping.aborted) await restarted.stop()
    else await publish(parts)
  }
}

const portOf = (baseUrl: string): string => new URL(baseUrl).port || '8080'

/** Tries again, ever more slowly, until it works or we stop. */
async function persist<T>(name: string, start: () => Promise<T>, stopping: AbortSignal): Promise<T | undefined> {
  for (let waitMs = RESTART_MS; !stopping.aborted; waitMs = Math.min(waitMs * 2, RESTART_MAX_MS)) {
    try {
      return await start()
    } catch (error) {
      complain(error, `${name} does not start, trying again in ${waitMs / 1000} s`)
      await delay(waitMs, undefined, { signal: stopping }).catch(() => {})
    }
  }
  return undefined
}

async function sayReady(parts: Parts, tookMs: number): Promise<void> {
  const { baseUrl, metricsUrl } = parts.controlPlane
  const key = (await readFile(parts.box.keyFile, 'utf8')).trim()
  say(`
Warren is ready after ${(tookMs / 1000).toFixed(1)} s.

  base URL   ${baseUrl}
  API key    ${key}
  API docs   ${baseUrl}/docs
  metrics    ${metricsUrl}
  data       ${parts.box.dataDir}

  curl -H 'X-Api-Key: ${key}' ${baseUrl}/v1/whoami

Ctrl-C stops it.`)
}

/** npm killed with -9 leaves us behind with nobody to stop us: then we stop ourselves. */
function stopWithNpm(stop: () => void): void {
  if (process.env.npm_lifecycle_event === undefined) return
  const parent = process.ppid
  setInterval(() => {
    if (process.ppid !== parent) stop()
  }, 500).unref()
}

function complain(error: unknown, text = ''): void {
  const cause = error instanceof Error ? error : ((error as { err?: unknown })?.err ?? error)
  process.stderr.write(`warren: ${text === '' ? '' : `${text}: `}${errorText(cause)}\n`)
}
