/** Starts the app of a deployment in a run sandbox, and waits until it answers. */
import { readFile } from 'node:fs/promises'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { crashPoint } from '@warren/kit/crash-point'
import { type ProcessCreateBody, type ProcessView, SELF_SIGNAL_PORT } from '@warren/protocol'
import { isTransient } from '../control-plane/client.ts'
import type { DeploymentRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import type { Secrets } from '../uploads/settings.ts'
import { openResult } from './artifacts.ts'
import { DeploymentFailure } from './failure.ts'
import {
  ARCHIVE,
  addedProgram,
  guestFile,
  listListeningPorts,
  projectCommand,
  unpackArchive,
  unpackSystem,
} from './guest-scripts.ts'
import { APP_FOLDER, type RunPlan } from './plan.ts'
import { type ProbeResult, probe } from './probe.ts'
import { describeExit, followProcess, isSuccess, runProcess } from './run-process.ts'
import { createSandbox, type WorkSandbox } from './sandboxes.ts'
import type { Work } from './work.ts'

const STATIC_SERVER = 'static-server.mjs'
const PROBE_EVERY_MS = 1_000
/** An app that answers once and then exits is not ready. */
const SETTLE_MS = 1_000

export type Release = { image: string; run: RunPlan; port: number }

/** Without ingress: an app is reached through the gateway only, which knows whether it is paid. */
export async function releaseApp(work: Work, release: Release): Promise<WorkSandbox> {
  const { deps, deployment, log, secrets } = work
  const sandbox = await createSandbox(work, 'run', {
    shape: deps.config.runShape,
    rootfs: release.image,
    envs: secrets.runEnvs ?? {},
  })
  const { controlPlane } = deps
  await controlPlane.putFile(sandbox.id, guestFile(ARCHIVE), await openResult(deps, deployment), work.signal)
  const unpack = release.run.kind === 'image' ? unpackSystem() : unpackArchive(APP_FOLDER)
  const unpacked = await runProcess(work, sandbox.id, unpack, 'gateway')
  if (!isSuccess(unpacked)) throw new DeploymentFailure(`unpacking the app failed: it ${describeExit(unpacked)}`)
  if (release.run.kind === 'static') await putStaticServer(work, sandbox)
  await crashPoint('run.unpacked')
  const { process_id } = await startApp(work, sandbox, release)
  await crashPoint('run.started')
  log.note(`started the app; it must listen on port ${release.port}`)
  await waitUntilHealthy(work, sandbox, process_id, release)
  return sandbox
}

async function putStaticServer({ deps, signal }: Work, sandbox: WorkSandbox): Promise<void> {
  const file = path.join(import.meta.dirname, 'guest', STATIC_SERVER)
  await deps.controlPlane.putFile(sandbox.id, guestFile(STATIC_SERVER), await readFile(file), signal)
}

type Starter = { deps: Deps; secrets: Secrets; signal: AbortSignal }

/** Also used by the supervisor, for an app that has exited. */
export async function startApp(
  { deps, secrets, signal }: Starter,
  sandbox: WorkSandbox,
  { run, port }: Pick<Release, 'run' | 'port'>,
): Promise<ProcessView> {
  const started = await deps.controlPlane.startProcess(sandbox.id, appProcess(run, port, secrets), signal)
  await deps.db
    .updateTable('gateway.sandboxes')
    .set({ process_id: started.process_id, output_seq: 0n })
    .where('name', '=', sandbox.name)
    .execute()
  return started
}

function appProcess(run: RunPlan, port: number, secrets: Secrets): ProcessCreateBody {
  const own = { PORT: String(port), HOST: '0.0.0.0' }
  if (run.kind === 'image') {
    // What the settings give wins over the Dockerfile. It is in the environment of the sandbox already.
    const env = Object.fromEntries(Object.entries(run.env).filter(([name]) => !(name in (secrets.runEnvs ?? {}))))
    return { ...addedProgram({ ...run, env: { ...env, ...own } }), env: own }
  }
  const folder = path.posix.join(APP_FOLDER, run.folder)
  const env = { NODE_ENV: 'production', PYTHONUNBUFFERED: '1', ...own }
  const given = Object.fromEntries(
    Object.entries(env).filter(([name]) => name in own || !(name in (secrets.runEnvs ?? {}))),
  )
  if (run.kind === 'command') return { ...projectCommand(folder, run.command), env: given }
  const args = ['-c', 'exec node "$HOME/$1" "$HOME/$2" "$3"', 'warren', `.warren/${STATIC_SERVER}`, folder]
  return { cmd: '/bin/sh', args: [...args, run.isSpa ? 'spa' : 'files'], env: given }
}

/** Throws a DeploymentFailure that says what the app did instead. */
async function waitUntilHealthy(work: Work, sandbox: WorkSandbox, processId: string, release: Release): Promise<void> {
  const { deps, log } = work
  const ended = new AbortController()
  const signal = AbortSignal.any([work.signal, ended.signal])
  // Its output is in the log while it is tested, and its exit ends the test.
  const followed = { sandboxId: sandbox.id, processId, source: 'app', sandboxName: sandbox.name } as const
  const exited = followProcess(deps, log, followed, signal).then((exit) => ({ exit }))
  exited.catch(() => {})
  const limitMs = deps.config.healthSeconds * 1_000
  try {
    const answer = await Promise.race([
      exited,
      answering(work, sandbox.id, release, AbortSignal.any([signal, AbortSignal.timeout(limitMs)])),
    ])
    if ('exit' in answer)
      throw new DeploymentFailure(`the app ${describeExit(answer.exit)} before it answered on port ${release.port}`)
    const settled = await Promise.race([exited, delay(SETTLE_MS, undefined, { signal })])
    if (settled) throw new DeploymentFailure(`the app ${describeExit(settled.exit)} right after it had answered`)
  } catch (error) {
    if (error instanceof NotHealthy) throw await explain(work, sandbox.id, release, error.last)
    throw error
  } finally {
    ended.abort(new Error('the test of the app has ended'))
    await log.flush()
  }
}

class NotHealthy extends Error {
  readonly last: ProbeResult | undefined

  constructor(last: ProbeResult | undefined) {
    super('the app did not become healthy')
    this.last = last
  }
}

async function answering(work: Work, sandboxId: string, release: Release, signal: AbortSignal): Promise<object> {
  let last: ProbeResult | undefined
  while (!signal.aborted) {
    try {
      last = await probe(
        work.deps,
        { sandboxId, port: release.port, host: work.deps.apps.hostOf(work.project) },
        signal,
      )
      if (last.kind === 'answered' && last.status < 500 && (await passesCheck(work, sandboxId, release, signal)))
        return {}
    } catch (error) {
      if (!signal.aborted && !isTransient(error)) throw error
    }
    await delay(PROBE_EVERY_MS, undefined, { signal }).catch(() => {})
  }
  work.signal.throwIfAborted()
  throw new NotHealthy(last)
}

/** HEALTHCHECK of a Dockerfile. */
async function passesCheck(
  work: Work,
  sandboxId: string,
  { run, port }: Release,
  signal: AbortSignal,
): Promise<boolean> {
  if (run.kind !== 'image' || run.healthcheck === undefined) return true
  const body = appProcess({ ...run, argv: run.healthcheck }, port, work.secrets)
  return isSuccess(await runProcess({ ...work, signal }, sandboxId, body, 'gateway'))
}

async function explain(
  work: Work,
  sandboxId: string,
  { port }: Release,
  last: ProbeResult | undefined,
): Promise<Error> {
  const seconds = work.deps.config.healthSeconds
  if (last?.kind === 'answered') {
    return new DeploymentFailure(
      `the app answered with status ${last.status} for ${seconds} s; a status below 500 is expected`,
    )
  }
  if (last?.kind === 'silent') {
    return new DeploymentFailure(
      `the app accepts connections on port ${port}, and did not answer a request for / within ${seconds} s`,
    )
  }
  const others = (await findListeningPorts(work, sandboxId)).filter((one) => one !== port)
  const hint = others.length > 0 ? ` It listens on ${others.join(', ')}.` : ''
  return new DeploymentFailure(
    `nothing listens on port ${port} after ${seconds} s.${hint} An app must listen on the port in the variable PORT; settings.port chooses it`,
  )
}

async function findListeningPorts(work: Work, sandboxId: string): Promise<number[]> {
  try {
    const { result } = await work.deps.controlPlane.exec(sandboxId, ...listListeningPorts(), work.signal)
    return parseListeningPorts(result.stdout)
  } catch {
    return [] // Only a hint.
  }
}

const LISTENING = '0A'
/** Of the guest itself, not of the app. */
const SYSTEM_PORTS: readonly number[] = [22, SELF_SIGNAL_PORT]
const PORTS_MAX = 5

/** Lines of /proc/net/tcp: number, local address and port, remote ones, state. */
export function parseListeningPorts(text: string): number[] {
  const ports = text
    .split('\n')
    .map((line) => line.trim().split(/\s+/))
    .filter(([, , , state]) => state === LISTENING)
    .map(([, local = '']) => Number.parseInt(local.slice(local.lastIndexOf(':') + 1), 16))
  return [...new Set(ports)]
    .filter((port) => port > 0 && !SYSTEM_PORTS.includes(port))
    .sort((a, b) => a - b)
    .slice(0, PORTS_MAX)
}

/** What the row of the deployment says; undefined before the project was examined. */
export function readRelease({ image, run, port }: DeploymentRow): Release | undefined {
  return image === null || run === null || port === null ? undefined : { image, run, port }
}
