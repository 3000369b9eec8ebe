/**
 * A Warren for one test: the real launcher and everything it starts, on a temporary data directory and free ports.
 * Processes that the test leaves running, or whose parent it kills, are killed when the test is over, and what they had
 * on the machine is removed.
 */
import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { chmodSync, existsSync, readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import path from 'node:path'
import { CRASH_POINTS_VARIABLE } from '@warren/kit/crash-point'
import { instanceName } from '@warren/kit/instance-name'
import { findDirectoryId, findPostmaster } from '@warren/kit/postgres/stop-server'
import { addCleanUp, type Scope } from '@warren/kit/testing/clean-up'
import { findProgram } from '@warren/kit/testing/find-program'
import { recordInstance } from '@warren/kit/testing/ledger'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { recordWarnings } from '@warren/kit/testing/warnings'
import { withTimeout } from '@warren/kit/timeout'
import { removeLeftovers } from './leftovers.ts'

export const ROOT = path.resolve(import.meta.dirname, '../../..')
const MAIN = path.join(ROOT, 'cli/src/main.ts')

type Options = {
  env?: NodeJS.ProcessEnv
  /** Instead of `node cli/src/main.ts`. */
  command?: string[]
  /** Where it is run, for the checkout of another version. */
  cwd?: string
  /** Longer than the default where the first start may build an image. */
  readyLimitMs?: number
}

/** `warren start`, ready or not. */
export type WarrenProcess = {
  dataDir: string
  pid: number
  child: ChildProcess
  /** Everything it has printed so far. */
  output(): string
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}
/** One that is ready. */
export type Instance = WarrenProcess & { baseUrl: string; key: string }

/** The last line of what `warren start` prints once it is ready. */
const READY_LINE = 'Ctrl-C stops it.'
/** On an idle machine Warren is ready within 2 to 3 s. */
const READY_LIMIT_MS = 60_000
/** Promised to users: on a machine of usual speed a stop takes at most this long. */
const STOP_LIMIT_MS = 10_000

export async function createDataDir(scope: Scope, name = 'data'): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-e2e-'))
  const dataDir = path.join(folder, name)
  addCleanUp(scope, async () => {
    await killProcesses(dataDir, folder)
    await removeLeftovers(dataDir)
    await rm(folder, { recursive: true, force: true })
  })
  return dataDir
}

/** Kills everything that was started for a data directory, or that names the folder, and waits until it is gone. */
export async function killProcesses(dataDir: string, folder = dataDir): Promise<void> {
  await until(() => {
    const pids = [...listProcesses(folder), ...listVmms(dataDir)]
    for (const pid of pids) kill(pid, 'SIGKILL')
    return pids.length === 0
  }, `the processes on ${folder} are gone`)
}

export function launch(dataDir: string, options: Options = {}): WarrenProcess {
  recordInstance(instanceName(dataDir))
  // The services that reach crash points run as several users.
  if (options.env?.[CRASH_POINTS_VARIABLE]) chmodSync(options.env[CRASH_POINTS_VARIABLE], 0o777)
  const [command, ...args] = options.command ?? [process.execPath, MAIN, 'start']
  let output = ''
  const child = spawn(command!, args, {
    cwd: options.cwd ?? ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
    // In a separate process group, so that a test can signal the group as a terminal does on Ctrl-C.
    detached: true,
    env: renderEnv(dataDir, options.env),
  })
  for (const stream of [child.stdout, child.stderr]) {
    const record = recordWarnings()
    stream.setEncoding('utf8').on('data', (chunk) => {
      output += chunk
      record(chunk)
    })
  }
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code, signal) => resolve({ code, signal }))
  })
  return { dataDir, pid: child.pid!, child, output: () => output, exited }
}

export async function startInstance(dataDir: string, options: Options = {}): Promise<Instance> {
  const launched = launch(dataDir, options)
  let hasExited = false
  void launched.exited.then(() => {
    hasExited = true
  })
  await until(
    () => hasExited || launched.output().includes(READY_LINE),
    'Warren is ready',
    options.readyLimitMs ?? READY_LIMIT_MS,
  )
  if (hasExited) throw new Error(`Warren did not start:\n${launched.output()}`)
  const readPrinted = (name: string) => new RegExp(`^ +${name} +(\\S+)$`, 'm').exec(launched.output())![1]!
  // The output is not a terminal, so it names the file with the key.
  const key = (await readFile(path.join(dataDir, 'local.key'), 'utf8')).trim()
  return { ...launched, baseUrl: readPrinted('base URL'), key }
}

/** Waits for a start to fail. */
export async function startExpectingFailure(
  dataDir: string,
  options: Options = {},
): Promise<{ code: number; output: string }> {
  const launched = launch(dataDir, options)
  const { code } = await withTimeout(scaleLimit(READY_LIMIT_MS), launched.exited, 'failing to start')
  return { code: code ?? -1, output: launched.output() }
}

type Exited = { code: number; stdout: string; stderr: string }

/** Runs another `warren …` command on the same data directory, as a user would type it. */
export const runWarren = (dataDir: string, ...args: string[]): Promise<Exited> =>
  waitForExit(spawnWarren(dataDir, args))

export const spawnWarren = (dataDir: string, args: string[], env: NodeJS.ProcessEnv = {}) =>
  spawn(process.execPath, [MAIN, ...args], { cwd: ROOT, env: renderEnv(dataDir, env) })

export async function waitForExit(child: ChildProcessWithoutNullStreams): Promise<Exited> {
  let stdout = ''
  let stderr = ''
  child.stdout.on('data', (chunk) => {
    stdout += chunk
  })
  child.stderr.on('data', (chunk) => {
    stderr += chunk
  })
  const code = await new Promise<number>((resolve) => child.once('close', (status) => resolve(status ?? -1)))
  return { code, stdout, stderr }
}

/** Sends the signal and returns the exit code. */
export async function stop(started: WarrenProcess, signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
  kill(started.pid, signal)
  const { code } = await withTimeout(scaleLimit(STOP_LIMIT_MS), started.exited, 'stopping')
  return code
}

export function kill(pid: number, signal: NodeJS.Signals = 'SIGKILL'): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

/** What the launcher writes to `instance.json`. */
type InstanceFile = { pid: number; children: { pid: number }[]; baseUrl?: string; databaseUrl?: string }

export async function findInstanceFile(dataDir: string): Promise<InstanceFile | undefined> {
  const text = await readFile(path.join(dataDir, 'instance.json'), 'utf8').catch(() => undefined)
  return text === undefined ? undefined : JSON.parse(text)
}

/** Of the programs themselves: the instance file names their jails. */
export async function getServicePids(dataDir: string): Promise<number[]> {
  const { children } = (await findInstanceFile(dataDir))!
  return children.map(({ pid }) => findProgram(pid))
}

/** Returns when they have ended: until then the old ones could answer. */
export async function killServices(dataDir: string): Promise<void> {
  const pids = await getServicePids(dataDir)
  for (const pid of pids) kill(pid)
  await until(() => listProcesses(dataDir).every((pid) => !pids.includes(pid)), 'the services have ended')
}

/** The program itself: the instance file names its jail. */
export const getControlPlanePid = (dataDir: string): Promise<number> =>
  getChildPid(dataDir, 'control-plane/src/main.ts')

export const getHostAgentPid = (dataDir: string): Promise<number> => getChildPid(dataDir, 'host-agent/src/main')
export const getGatewayPid = (dataDir: string): Promise<number> => getChildPid(dataDir, 'gateway/src/main.ts')

async function getChildPid(dataDir: string, program: string): Promise<number> {
  const { children } = (await findInstanceFile(dataDir))!
  const child = children.find(({ pid }) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(program))
  return findProgram(child!.pid)
}

export async function getDatabaseUrl(dataDir: string): Promise<string> {
  return (await findInstanceFile(dataDir))!.databaseUrl!
}

/** NaN if it does not run. The pid in its own file is one of its jail's namespace. */
export function getPostmasterPid(dataDir: string): number {
  const id = findDirectoryId(path.join(dataDir, 'postgres'))
  return (id && findPostmaster(id)) ?? Number.NaN
}

/** The process that has this pid in the jail of a service. */
export const findInJail = (dataDir: string, pid: number): number | undefined =>
  listProcesses(dataDir).find((one) => new RegExp(`^NSpid:.*\\s${pid}$`, 'm').test(readStatus(one)))

function readStatus(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/status`, 'utf8')
  } catch {
    return '' // It exited meanwhile.
  }
}

/** Where the embedded PostgreSQL listens. */
export function getDatabaseSocketFolder(dataDir: string): string {
  const inJail = path.join(dataDir, 'postgres-socket')
  return existsSync(inJail) ? inJail : path.join(dataDir, 'postgres')
}

/** The live processes that were started for a data directory, or whose working directory is in it. */
export function listProcesses(dataDir: string): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => belongsTo(pid, dataDir))
    .map(Number)
}

function belongsTo(pid: string, dataDir: string): boolean {
  try {
    if (/\) [ZX]/.test(readFileSync(`/proc/${pid}/stat`, 'utf8'))) return false
    return (
      readlinkSync(`/proc/${pid}/cwd`).startsWith(dataDir) ||
      ['cmdline', 'environ'].some((file) => readFileSync(`/proc/${pid}/${file}`, 'utf8').includes(dataDir))
    )
  } catch {
    return false // It exited meanwhile.
  }
}

/** The VMMs of a data directory, by their cgroups: their command lines do not name it. */
export const listVmms = (dataDir: string): number[] =>
  readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name))
    .filter((pid) => {
      try {
        return readFileSync(`/proc/${pid}/cgroup`, 'utf8').includes(`/warren-${instanceName(dataDir)}/`)
      } catch {
        return false // It exited meanwhile.
      }
    })
    .map(Number)

export const fetchPath = (
  instance: { baseUrl: string; key: string },
  route: string,
  key = instance.key,
): Promise<Response> => fetch(`${instance.baseUrl}${route}`, { headers: { 'X-Api-Key': key } })

/** The environment of the test run, npm's variables in particular, must not reach the instance. */
function renderEnv(dataDir: string, env: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  return {
    PATH: process.env.PATH,
    HOME: path.dirname(dataDir),
    TMPDIR: tmpdir(),
    // Shared for the compiled code in it, which saves each start a second.
    XDG_CACHE_HOME: process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'),
    WARREN_DATA_DIR: dataDir,
    WARREN_PORT: '0',
    WARREN_METRICS_PORT: '0',
    WARREN_INGRESS_PORT: '0',
    WARREN_RATE_LIMIT: '0',
    // Tests and measurements create users on machines without KVM.
    WARREN_ALLOW_TCG_TENANTS: 'yes',
    // Tests that need virtual machines turn them on; for the others booting them would be a waste.
    WARREN_VMS: 'off',
    // So do those of the gateway.
    WARREN_GATEWAY: 'off',
    ...env,
  }
}
