/** A host agent process of a test, on a temporary data directory. It is stopped when the tests of the file are over. */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readdirSync, readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { after } from 'node:test'
import { recordInstance } from '@warren/kit/testing/ledger'
import { scaleLimit } from '@warren/kit/testing/slowness'
import { until } from '@warren/kit/testing/until'
import { withTimeout } from '@warren/kit/timeout'
import { readHostConfig } from '../config.ts'

/** The first start on a machine builds the image. */
const START_LIMIT_MS = 10 * 60_000
const STOP_LIMIT_MS = 10_000

export type TestHostAgent = {
  socket: string
  dataDir: string
  runDir: string
  cidr: string
  /** Starts another one on the same data directory after this one was killed. */
  startAgain(): Promise<void>
}

export async function startHostAgent(settings: Record<string, string> = {}): Promise<TestHostAgent> {
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-host-agent-'))
  const dataDir = path.join(folder, 'data')
  const env = {
    ...process.env,
    WARREN_DATA_DIR: dataDir,
    WARREN_BACKGROUND_IMAGES: 'none',
    WARREN_PREPARE_SHAPES: 'none',
    WARREN_LOG_LEVEL: 'fatal',
    ...settings,
  }
  const { runDir, instance } = readHostConfig(env)
  recordInstance(instance)
  let child: ChildProcess | undefined
  after(async () => {
    if (child) await stop(child)
    await until(() => {
      const pids = listProcesses([dataDir, runDir])
      for (const pid of pids) process.kill(pid, 'SIGKILL')
      return pids.length === 0
    }, `the processes of ${dataDir} are gone`)
    await rm(folder, { recursive: true, force: true })
  })
  const start = async (): Promise<string> => {
    if (child && child.exitCode === null && child.signalCode === null) await once(child, 'exit')
    child = spawn(process.execPath, [path.resolve(import.meta.dirname, '../main.ts')], {
      env,
      stdio: ['ignore', 'inherit', 'inherit', 'ipc'],
    })
    const { promise: ready, resolve, reject } = Promise.withResolvers<string>()
    child.on('message', (message: { ready?: true; socket: string; failed?: string }) => {
      if (message.ready) resolve(message.socket)
      if (message.failed !== undefined) reject(new Error(message.failed))
    })
    child.once('exit', (code) => reject(new Error(`the host agent exited with ${code}`)))
    return withTimeout(START_LIMIT_MS, ready, 'starting the host agent')
  }
  const socket = await start()
  const { cidr } = JSON.parse(await readFile(path.join(dataDir, 'network.json'), 'utf8'))
  return { socket, dataDir, runDir, cidr, startAgain: async () => void (await start()) }
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const exited = once(child, 'exit')
  child.kill('SIGTERM')
  await withTimeout(scaleLimit(STOP_LIMIT_MS), exited, 'stopping the host agent').catch(() => child.kill('SIGKILL'))
}

/** The processes with one of these paths on their command line: QEMU, netd and the others that a host agent starts. */
export function listProcesses(paths: string[]): number[] {
  return readdirSync('/proc')
    .filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid)
    .filter((pid) => {
      try {
        const commandLine = readFileSync(`/proc/${pid}/cmdline`, 'utf8')
        return paths.some((one) => commandLine.includes(one))
      } catch {
        return false // It exited meanwhile.
      }
    })
    .map(Number)
}
