/**
 * A Warren for one story: the real launcher and all it starts, on a data directory of its own and on free ports.
 * Whatever a story leaves running, or kills in the middle, is ended when it is over.
 */
import { type ChildProcess, type ChildProcessWithoutNullStreams, spawn } from 'node:child_process'
import { readdirSync, readFileSync, readlinkSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import path from 'node:path'
import { within } from '@warren/kit/stop'
import { until } from '@warren/kit/testing/until'

export const ROOT = path.resolve(import.meta.dirname, '../..')
const MAIN = path.join(ROOT, 'warren/src/main.ts')

/** A test, or a whole file: both know when they are over. */
type Story = { after(end: () => Promise<void>): void }
type Options = {
  env?: NodeJS.ProcessEnv
  /** Instead of `node warren/src/main.ts`. */
  command?: string[]
  /** Where the first start may build an image. */
  readyLimitMs?: number
}

/** A start, ready or not. */
export type Run = {
  dataDir: string
  pid: number
  child: ChildProcess
  /** What it wrote so far. */
  output(): string
  exited: Promise<{ code: number | null; signal: NodeJS.Signals | null }>
}
export type Box = Run & { baseUrl: string; key: string }

/** Ready takes 2 to 3 s on an idle machine. */
const READY_LIMIT_MS = 60_000

export async function makeDataDir(story: Story, name = 'data'): Promise<string> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-e2e-'))
  story.after(async () => {
    await until(() => {
      const pids = processesOf(folder)
      for (const pid of pids) kill(pid, 'SIGKILL')
      return pids.length === 0
    }, `the processes on ${folder} are gone`)
    await rm(folder, { recursive: true, force: true })
  })
  return path.join(folder, name)
}

export function launch(dataDir: string, options: Options = {}): Run {
  const [command, ...args] = options.command ?? [process.execPath, MAIN, 'start']
  let output = ''
  // A group of its own, to which a terminal's Ctrl-C can be played.
  const child = spawn(command!, args, {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'pipe'],
    detached: true,
    env: cleanEnv(dataDir, options.env),
  })
  for (const stream of [child.stdout, child.stderr]) {
    stream.setEncoding('utf8').on('data', (chunk) => {
      output += chunk
    })
  }
  const exited = new Promise<{ code: number | null; signal: NodeJS.Signals | null }>((resolve, reject) => {
    child.once('error', reject)
    child.once('close', (code, signal) => resolve({ code, signal }))
  })
  return { dataDir, pid: child.pid!, child, output: () => output, exited }
}

export async function startBox(dataDir: string, options: Options = {}): Promise<Box> {
  const run = launch(dataDir, options)
  let ended = false
  void run.exited.then(() => {
    ended = true
  })
  await until(
    () => ended || run.output().includes('Ctrl-C stops it.'),
    'Warren is ready',
    options.readyLimitMs ?? READY_LIMIT_MS,
  )
  if (ended) throw new Error(`Warren did not start:\n${run.output()}`)
  const said = (name: string) => new RegExp(`^ +${name} +(\\S+)$`, 'm').exec(run.output())![1]!
  return { ...run, baseUrl: said('base URL'), key: said('API key') }
}

/** Runs to its end a start that must not succeed. */
export async function failToStart(dataDir: string, options: Options = {}): Promise<{ code: number; output: string }> {
  const run = launch(dataDir, options)
  const { code } = await within(READY_LIMIT_MS, run.exited, 'failing to start')
  return { code: code ?? -1, output: run.output() }
}

type Ended = { code: number; stdout: string; stderr: string }

/** `warren …` beside it, as a person would type it. */
export const warren = (dataDir: string, ...args: string[]): Promise<Ended> => ended(spawnWarren(dataDir, args))

export const spawnWarren = (dataDir: string, args: string[], env: NodeJS.ProcessEnv = {}) =>
  spawn(process.execPath, [MAIN, ...args], { cwd: ROOT, env: cleanEnv(dataDir, env) })

export async function ended(child: ChildProcessWithoutNullStreams): Promise<Ended> {
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

/** Sends the signal and gives how it ended; a stop has 10 s. */
export async function stop(run: Run, signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
  kill(run.pid, signal)
  const { code } = await within(10_000, run.exited, 'stopping')
  return code
}

export function kill(pid: number, signal: NodeJS.Signals = 'SIGKILL'): void {
  try {
    process.kill(pid, signal)
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== 'ESRCH') throw error
  }
}

type Instance = { pid: number; children: { pid: number }[]; baseUrl?: string; databaseUrl?: string }

export async function findInstance(dataDir: string): Promise<Instance | undefined> {
  const text = await readFile(path.join(dataDir, 'instance.json'), 'utf8').catch(() => undefined)
  return text === undefined ? undefined : JSON.parse(text)
}

export async function controlPlanePid(dataDir: string): Promise<number> {
  return (await findInstance(dataDir))!.children[0]!.pid
}

export async function hostAgentPid(dataDir: string): Promise<number> {
  const { children } = (await findInstance(dataDir))!
  return children.find(({ pid }) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('host-agent/src/main'))!.pid
}

export async function databaseUrl(dataDir: string): Promise<string> {
  return (await findInstance(dataDir))!.databaseUrl!
}

export const postmasterPid = (dataDir: string): number =>
  Number.parseInt(readFileSync(path.join(dataDir, 'postgres/postmaster.pid'), 'utf8'), 10)

/** Every live process that was started for a data directory, or works in it. */
export function processesOf(dataDir: string): number[] {
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
    return false // It ended while we looked.
  }
}

export const get = (box: { baseUrl: string; key: string }, route: string, key = box.key): Promise<Response> =>
  fetch(`${box.baseUrl}${route}`, { headers: { 'X-Api-Key': key } })

/** Nothing of what surrounds the test run, its npm least of all, may reach the box. */
function cleanEnv(dataDir: string, env: NodeJS.ProcessEnv = {}): NodeJS.ProcessEnv {
  return {
    PATH: process.env.PATH,
    HOME: path.dirname(dataDir),
    // Compiled code only, which saves each start a second.
    XDG_CACHE_HOME: process.env.XDG_CACHE_HOME || path.join(homedir(), '.cache'),
    WARREN_DATA_DIR: dataDir,
    WARREN_PORT: '0',
    WARREN_METRICS_PORT: '0',
    WARREN_INGRESS_PORT: '0',
    WARREN_RATE_LIMIT: '0',
    // The stories about virtual machines ask for them; the others would boot them for nothing.
    WARREN_VMS: 'off',
    ...env,
  }
}
