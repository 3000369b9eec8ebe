/**
 * An embedded PostgreSQL: made once, started and stopped with the service.
 *
 * Order of events: a server left behind by a killed launcher is stopped; a missing data directory is made beside
 * its place and renamed (a killed initdb leaves nothing half made); the server starts in a session of its own, so a
 * Ctrl-C for the launcher does not reach it before its clients are gone; it is ready when it answers a query.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, open, readFile, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { unprivileged } from '../unprivileged.ts'
import { type Binaries, findBinaries } from './binaries.ts'
import { stopServer } from './leftover.ts'

export type PostgresServer = {
  url: string
  pid: number
  /** Settles when the server process ends, for whatever reason. */
  exited: Promise<void>
  stop(): Promise<void>
}

/** sun_path holds 108 bytes with the final NUL. */
const SOCKET_PATH_MAX_BYTES = 107
const SOCKET_NAME = '.s.PGSQL.5432'
const START_LIMIT_MS = 60_000
const STOP_LIMIT_MS = 6_000

export async function startPostgres(options: {
  dir: string
  logFile: string
  /** Only throw-away databases of tests may give up durability. */
  durable?: boolean
}): Promise<PostgresServer> {
  const dir = path.resolve(options.dir)
  const binaries = await findBinaries()
  await stopServer(dir, STOP_LIMIT_MS)
  await mkdir(path.dirname(options.logFile), { recursive: true, mode: 0o700 })
  if (!existsSync(path.join(dir, 'PG_VERSION'))) await initialise(binaries, dir, options.logFile)

  const socketDir = await makeSocketDir(dir)
  const child = await launch(
    binaries.postgres,
    ['-D', dir, '-k', socketDir, ...settings(options.durable ?? true)],
    options.logFile,
  )
  const exited = new Promise<void>((resolve) => child.once('exit', () => resolve()))
  const url = `postgresql://postgres@/postgres?host=${encodeURIComponent(socketDir)}`
  try {
    await untilReady(url, exited)
  } catch (error) {
    child.kill('SIGQUIT')
    throw new Error(`PostgreSQL did not start.\n${await tail(options.logFile)}`, { cause: error })
  }
  return { url, pid: child.pid!, exited, stop: async () => void (await stopServer(dir, STOP_LIMIT_MS)) }
}

const settings = (durable: boolean) =>
  Object.entries({
    listen_addresses: '',
    unix_socket_permissions: '0700',
    max_connections: '200',
    shared_buffers: '128MB',
    timezone: 'UTC',
    fsync: durable ? 'on' : 'off',
    synchronous_commit: durable ? 'on' : 'off',
    full_page_writes: durable ? 'on' : 'off',
  }).flatMap(([name, value]) => ['-c', `${name}=${value}`])

async function initialise(binaries: Binaries, dir: string, logFile: string): Promise<void> {
  const fresh = `${dir}.new`
  await rm(fresh, { recursive: true, force: true })
  await mkdir(path.dirname(dir), { recursive: true, mode: 0o700 })
  const child = await launch(
    binaries.initdb,
    ['-D', fresh, '-U', 'postgres', '-A', 'trust', '--locale=C.UTF-8', '-E', 'UTF8', '--no-instructions'],
    logFile,
  )
  const code = await new Promise<number | null>((resolve) => child.once('exit', resolve))
  if (code !== 0) throw new Error(`initdb failed (exit ${code}).\n${await tail(logFile)}`)
  await rename(fresh, dir)
}

/** In the data directory (mode 700: only its owner connects), unless that path is too long for a socket. */
async function makeSocketDir(dir: string): Promise<string> {
  if (Buffer.byteLength(path.join(dir, SOCKET_NAME)) <= SOCKET_PATH_MAX_BYTES) return dir
  const short = path.join(tmpdir(), `warren-${createHash('sha256').update(dir).digest('hex').slice(0, 16)}`)
  await mkdir(short, { recursive: true, mode: 0o700 })
  return short
}

async function launch(command: string, args: string[], logFile: string): Promise<ChildProcess> {
  const log = await open(logFile, 'a', 0o600)
  try {
    const [program, programArgs] = unprivileged(command, args)
    const child = spawn(program, programArgs, { stdio: ['ignore', log.fd, log.fd], detached: true })
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve)
      child.once('error', (error) => reject(new Error(`could not run ${program}`, { cause: error })))
    })
    return child
  } finally {
    await log.close()
  }
}

async function untilReady(url: string, exited: Promise<void>): Promise<void> {
  let ended = false
  void exited.then(() => {
    ended = true
  })
  let last: unknown
  for (const deadline = Date.now() + START_LIMIT_MS; Date.now() < deadline; await delay(10)) {
    if (ended) throw new Error('it ended at once', { cause: last })
    const client = new pg.Client({ connectionString: url })
    client.on('error', () => {}) // The server may vanish between two tries; the next try says so.
    try {
      await client.connect()
      await client.query('select 1')
      return
    } catch (error) {
      last = error
    } finally {
      await client.end().catch(() => {})
    }
  }
  throw new Error(`it did not answer within ${START_LIMIT_MS / 1000} s`, { cause: last })
}

async function tail(file: string): Promise<string> {
  const lines = (await readFile(file, 'utf8').catch(() => '')).trimEnd().split('\n')
  return [`The end of ${file}:`, ...lines.slice(-12).map((line) => `  ${line}`)].join('\n')
}
