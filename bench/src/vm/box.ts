/**
 * Warren with virtual machines, started as `npm start` does, on a data directory of its own that is thrown away. The
 * images and the guest's kernel come from this machine's cache; what is missing there is built first.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { within } from '@warren/kit/stop'
import { ROOT } from '../child.ts'
import type { Fixture, Run } from '../row.ts'
import { Skip } from '../skip.ts'
import { Api } from './api.ts'

export type VmBox = {
  api: Api
  dataDir: string
  /** The processes that a client's bytes pass through. */
  pids: { controlPlane: number; hostAgent: number }
}

export const SMALL = 's-1vcpu-256mb'
export const LARGE = 's-1vcpu-1gb'
/** Whose bases the host agent boots after a start, in its order: when the last is there the machine is quiet. */
const FIRST_SHAPES = [LARGE, SMALL, 's-2vcpu-2gb']
/** Where the image is not in the cache yet. */
const READY_LIMIT_MS = 15 * 60_000
const STOP_LIMIT_MS = 15_000

export const vmBox: Fixture<VmBox> = (run) => startBox(run, {})
/** Nothing of a paused sandbox stays in memory. */
export const boxWithoutStandby: Fixture<VmBox> = (run) => startBox(run, { WARREN_STANDBY_MIB: '0' })

async function startBox(run: Run, env: NodeJS.ProcessEnv): Promise<VmBox> {
  if (process.getuid?.() !== 0) throw new Skip('virtual machines need root')
  run.say('  starting Warren with virtual machines')
  const folder = await mkdtemp(path.join(tmpdir(), 'warren-bench-'))
  run.defer(() => rm(folder, { recursive: true, force: true }))
  const dataDir = path.join(folder, 'data')
  const child = launch(dataDir, env)
  run.defer(() => stop(child))
  const said = await untilReady(run, child)

  const api = new Api(said('base URL'), said('API key'))
  run.defer(api.close)
  run.defer(() => api.deleteAll())
  for (const shape of FIRST_SHAPES) {
    const { id } = await api.create(shape)
    await api.exec(id, 'true')
    await api.delete(id)
  }
  return { api, dataDir, pids: await readPids(dataDir) }
}

/** Of the QEMU of a sandbox; the host agent's record names it. */
export async function readQemuPid(dataDir: string, id: string): Promise<number> {
  const record = JSON.parse(await readFile(path.join(dataDir, 'vms', `${id}.json`), 'utf8'))
  return (record as { body: { qemu: { pid: number } } }).body.qemu.pid
}

function launch(dataDir: string, env: NodeJS.ProcessEnv): ChildProcess {
  const kept = Object.entries(process.env).filter(
    ([name]) => !/^(WARREN_|OTEL_|PG|DATABASE_URL$)/.test(name) || name === 'WARREN_CACHE_DIR',
  )
  return spawn(process.execPath, [path.join(ROOT, 'warren/src/main.ts'), 'start'], {
    cwd: ROOT,
    stdio: ['ignore', 'pipe', 'inherit'],
    // Ctrl-C reaches only us; the order of stopping is ours.
    detached: true,
    env: {
      ...Object.fromEntries(kept),
      WARREN_DATA_DIR: dataDir,
      WARREN_PORT: '0',
      WARREN_METRICS_PORT: '0',
      WARREN_INGRESS_PORT: '0',
      WARREN_RATE_LIMIT: '0',
      WARREN_INGRESS_RATE_LIMIT: '0',
      WARREN_BACKGROUND_IMAGES: 'none',
      // As under npm: when we are killed it notices that its parent is another, and stops.
      npm_lifecycle_event: 'bench',
      ...env,
    },
  })
}

async function untilReady(run: Run, child: ChildProcess): Promise<(name: string) => string> {
  let output = ''
  const ready = new Promise<void>((resolve, reject) => {
    child.once('error', reject)
    child.once('exit', () => reject(new Error(`Warren did not start:\n${output}`)))
    child.stdout!.setEncoding('utf8').on('data', (text: string) => {
      // What it says once it is ready is a warning.
      if (output.includes('Ctrl-C stops it.')) return run.say(`  warren: ${text.trimEnd()}`)
      output += text
      if (output.includes('Ctrl-C stops it.')) resolve()
    })
    run.signal.addEventListener('abort', () => reject(run.signal.reason), { once: true })
  })
  await within(READY_LIMIT_MS, ready, 'starting Warren')
  return (name) => new RegExp(`^ +${name} +(\\S+)$`, 'm').exec(output)![1]! // It says both when it is ready.
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  const ended = once(child, 'exit')
  child.kill('SIGTERM')
  await within(STOP_LIMIT_MS, ended, 'stopping Warren')
}

async function readPids(dataDir: string): Promise<VmBox['pids']> {
  const { children } = JSON.parse(await readFile(path.join(dataDir, 'instance.json'), 'utf8')) as {
    children: { pid: number }[]
  }
  const running = (script: string) => {
    const found = children.find(({ pid }) => readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes(script))
    if (!found) throw new Error(`no process runs ${script}`)
    return found.pid
  }
  return { controlPlane: running('control-plane/src/main.ts'), hostAgent: running('host-agent/src/main.ts') }
}
