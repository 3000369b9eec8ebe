/**
 * Warren with virtual machines, started as `npm start` does, on a temporary data directory. Images and the guest's
 * kernel come from this machine's cache; what is missing there is built first.
 *
 * The checkout may be of another version than this one (`--compare`). So only what all versions have in common is
 * used: `warren start`, the `baseUrl` in `instance.json` that appears when Warren is ready, `warren env`, the API.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { promisify } from 'node:util'
import { findProgram } from '@warren/kit/testing/find-program'
import { withTimeout } from '@warren/kit/timeout'
import { ROOT } from '../child.ts'
import type { Fixture, Run } from '../row.ts'
import { Skip } from '../skip.ts'
import { Api } from './api.ts'

export type Instance = { api: Api; dataDir: string }

export const SMALL = 's-1vcpu-256mb'
export const LARGE = 's-1vcpu-1gb'
/** The host agent boots a base for each of these after a start, in this order: after the last one it is idle. */
const FIRST_SHAPES = [LARGE, SMALL, 's-2vcpu-2gb']
/** Long enough to build an image that is not in the cache yet. */
const READY_LIMIT_MS = 15 * 60_000
const READY_POLL_MS = 50
const STOP_LIMIT_MS = 15_000

export const instance: Fixture<Instance> = (run) => startInstance(run, { root: ROOT })
/** Keeps nothing of a paused sandbox in memory. */
export const WITHOUT_STANDBY = { WARREN_STANDBY_MIB: '0' }
export const instanceWithoutStandby: Fixture<Instance> = (run) =>
  startInstance(run, { root: ROOT, env: WITHOUT_STANDBY })

type Start = {
  /** The checkout whose `warren` is started, with its npm packages and guest agent in place. */
  root: string
  env?: Readonly<Record<string, string>>
  /** Named in progress lines where there is more than one. */
  label?: string
}

export async function startInstance(run: Run, start: Start): Promise<Instance> {
  if (process.getuid?.() !== 0) throw new Skip('virtual machines need root')
  const name = start.label === undefined ? 'Warren' : `Warren (${start.label})`
  run.report(`  starting ${name} with virtual machines`)
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-bench-'))
  run.defer(() => rm(folder, { recursive: true, force: true }))
  const dataDir = path.join(folder, 'data')
  const env = renderEnv(dataDir, start.env)
  const child = spawn(nodeOf(start.root), [mainOf(start.root), 'start'], {
    cwd: start.root,
    stdio: ['ignore', 'pipe', 'inherit'],
    // Ctrl-C reaches only this process, which decides the order of stopping.
    detached: true,
    env,
  })
  run.defer(() => stop(child))
  await waitUntilReady(run, child, dataDir, name)

  const api = await connect(start.root, env)
  run.defer(api.close)
  run.defer(() => api.deleteAll())
  for (const shape of FIRST_SHAPES) {
    run.signal.throwIfAborted()
    const { id } = await api.create(shape)
    await api.exec(id, 'true')
    await api.delete(id)
  }
  return { api, dataDir }
}

/** The processes that a client's bytes pass through. */
export async function readPids({ dataDir }: Instance): Promise<{ controlPlane: number; hostAgent: number }> {
  const { children } = JSON.parse(await readFile(path.join(dataDir, 'instance.json'), 'utf8')) as {
    children: { pid: number }[]
  }
  const findPid = (script: string) => {
    const found = children.find(({ pid }) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(script))
    if (!found) throw new Error(`no process runs ${script}`)
    return findProgram(found.pid)
  }
  return { controlPlane: findPid('control-plane/src/main.ts'), hostAgent: findPid('host-agent/src/main.ts') }
}

/** The pid of a sandbox's QEMU, from the host agent's record. */
export async function readQemuPid(dataDir: string, id: string): Promise<number> {
  const record = JSON.parse(await readFile(path.join(dataDir, 'vms', `${id}.json`), 'utf8'))
  // In a comparison with a commit from before record version 2, the host agent calls it `body`.
  const { vmm, body } = record as { [key: string]: { qemu: { pid: number } } | undefined }
  return (vmm ?? body)!.qemu.pid
}

/** Each version runs on the Node that it comes with. */
const nodeOf = (root: string): string => path.join(root, 'node_modules/.bin/node')

/** Before version 0.2.0 the folder was called `warren`. */
const mainOf = (root: string): string =>
  ['cli/src/main.ts', 'warren/src/main.ts'].find((file) => existsSync(path.join(root, file)))!

/** Settings in the caller's environment are not passed on, so that they cannot change the result. The cache directory is. */
function renderEnv(dataDir: string, more: Readonly<Record<string, string>> = {}): NodeJS.ProcessEnv {
  const inherited = Object.entries(process.env).filter(
    ([name]) => !/^(WARREN_|OTEL_|PG|DATABASE_URL$)/.test(name) || name === 'WARREN_CACHE_DIR',
  )
  return {
    ...Object.fromEntries(inherited),
    WARREN_DATA_DIR: dataDir,
    WARREN_PORT: '0',
    WARREN_METRICS_PORT: '0',
    WARREN_INGRESS_PORT: '0',
    WARREN_RATE_LIMIT: '0',
    // Tests and measurements create users on machines without KVM.
    WARREN_ALLOW_TCG_TENANTS: 'yes',
    WARREN_INGRESS_RATE_LIMIT: '0',
    WARREN_BACKGROUND_IMAGES: 'none',
    WARREN_PREPARE_SHAPES: 'none',
    WARREN_GATEWAY: 'off',
    // As under npm: Warren then stops when its parent process changes, which happens when the bench is killed.
    npm_lifecycle_event: 'bench',
    ...more,
  }
}

async function waitUntilReady(run: Run, child: ChildProcess, dataDir: string, name: string): Promise<void> {
  let output = ''
  let isReady = false
  // What it prints once it is ready is a warning.
  child.stdout!.setEncoding('utf8').on('data', (text: string) => {
    if (isReady) run.report(`  ${name}: ${text.trimEnd()}`)
    else output += text
  })
  const exited = new Promise<never>((_, reject) => {
    child.once('error', reject)
    child.once('exit', () => reject(new Error(`${name} did not start:\n${output}`)))
  })
  exited.catch(() => {}) // It also exits when it is stopped at the end.
  const ready = async () => {
    while (!(await hasBaseUrl(dataDir))) await delay(READY_POLL_MS, undefined, { signal: run.signal })
  }
  await withTimeout(READY_LIMIT_MS, Promise.race([ready(), exited]), `starting ${name}`)
  isReady = true
}

async function hasBaseUrl(dataDir: string): Promise<boolean> {
  const text = await readFile(path.join(dataDir, 'instance.json'), 'utf8').catch(() => '{}') // Not written yet.
  return JSON.parse(text).baseUrl !== undefined
}

async function connect(root: string, env: NodeJS.ProcessEnv): Promise<Api> {
  const { stdout } = await promisify(execFile)(nodeOf(root), [mainOf(root), 'env'], { cwd: root, env })
  const read = (name: string) => {
    const value = new RegExp(`^${name}=(\\S+)$`, 'm').exec(stdout)?.[1]
    if (value === undefined) throw new Error(`\`warren env\` in ${root} did not print ${name}`)
    return value
  }
  return new Api(read('WARREN_BASE_URL'), read('WARREN_API_KEY'))
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.stdout!.removeAllListeners('data').resume() // What it prints while it stops is not of interest.
  const ended = once(child, 'exit')
  child.kill('SIGTERM')
  await withTimeout(STOP_LIMIT_MS, ended, 'stopping Warren')
}
