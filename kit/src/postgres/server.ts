/**
 * The embedded PostgreSQL, which is started and stopped with the service.
 *
 * Order of events: stop a server that a killed launcher left running. Create a missing data directory under a temporary
 * name and rename it, so that a killed initdb leaves no partial directory. Start the server in a separate session, so
 * that a Ctrl-C for the launcher does not reach it before its clients have stopped. It is ready when it answers a query.
 * When the start is aborted, everything that has been started is stopped first.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, open, readdir, readFile, rename, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { syncFolder } from '../files.ts'
import { asUnprivileged, withParentDeathSignal } from '../unprivileged.ts'
import { type Binaries, findBinaries } from './binaries.ts'
import { removeLocks, stopServer } from './stop-server.ts'

export type PostgresServer = {
  url: string
  pid: number
  /** Settles when the server process ends, for any reason. */
  exited: Promise<void>
  stop(): Promise<void>
}

type Process = { child: ChildProcess; exited: Promise<number | null> }

/** sun_path holds 108 bytes with the final NUL. */
const SOCKET_PATH_MAX_BYTES = 107
const PORT = '5432'
const SOCKET_NAME = `.s.PGSQL.${PORT}`
const SILENCE_LIMIT_MS = 60_000
/** SQLSTATE cannot_connect_now: the server is running and still in recovery. */
const STARTING_UP = '57P03'

export async function startPostgres(
  options: {
    dir: string
    logFile: string
    /** False only for temporary databases of tests. */
    durable?: boolean
  },
  signal?: AbortSignal,
): Promise<PostgresServer> {
  const dir = path.resolve(options.dir)
  const binaries = await findBinaries()
  const socketDir = await makeSocketDir(dir)
  await stopServer(dir)
  await mkdir(path.dirname(options.logFile), { recursive: true, mode: 0o700 })
  if (!existsSync(path.join(dir, 'PG_VERSION'))) await initialise(binaries, dir, options.logFile, signal)

  await removeLocks(dir, path.join(socketDir, SOCKET_NAME))
  const args = ['-D', dir, '-k', socketDir, '-p', PORT, ...settings(options.durable ?? true)]
  const { child, exited } = await launch(binaries.postgres, args, options.logFile)
  const stop = () => stopServer(dir, child.exitCode === null && child.signalCode === null ? child.pid : undefined)
  // Everything is in the URL, because PGPORT and similar variables are meant for another server.
  const url = `postgresql://postgres@/postgres?host=${encodeURIComponent(socketDir)}&port=${PORT}&sslmode=disable`
  try {
    await untilReady(url, exited, signal)
  } catch (error) {
    await stop()
    signal?.throwIfAborted()
    throw new Error(`PostgreSQL failed to start.\n${await tail(options.logFile)}`, { cause: error })
  }
  return { url, pid: child.pid!, exited: exited.then(() => {}), stop }
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

async function initialise(binaries: Binaries, dir: string, logFile: string, signal?: AbortSignal): Promise<void> {
  const home = path.dirname(dir)
  await mkdir(home, { recursive: true, mode: 0o700 })
  await removePartial(dir)
  // A unique name: an initdb whose launcher was killed may still be writing to the previous one.
  const partial = await mkdtemp(`${dir}.new-`)
  const args = ['-D', partial, '-U', 'postgres', '-A', 'trust', '--locale=C.UTF-8', '-E', 'UTF8', '--no-instructions']
  try {
    const { exited } = await launch(binaries.initdb, args, logFile, signal)
    const code = await exited
    signal?.throwIfAborted()
    if (code !== 0) throw new Error(`initdb failed (exit ${code}).\n${await tail(logFile)}`)
    await rename(partial, dir)
  } catch (error) {
    await removePartial(dir)
    throw error
  }
  await syncFolder(home)
}

async function removePartial(dir: string): Promise<void> {
  const names = await readdir(path.dirname(dir))
  for (const name of names.filter((one) => one.startsWith(`${path.basename(dir)}.new-`))) {
    await rm(path.join(path.dirname(dir), name), { recursive: true, force: true, maxRetries: 5 })
  }
}

/**
 * The data directory (mode 700, so only its owner can connect), unless its path is too long for a socket or PostgreSQL
 * would read it as a list.
 */
async function makeSocketDir(dir: string): Promise<string> {
  if (Buffer.byteLength(path.join(dir, SOCKET_NAME)) <= SOCKET_PATH_MAX_BYTES && !/[,"]/.test(dir)) return dir
  const short = path.join(tmpdir(), `warren-${createHash('sha256').update(dir).digest('hex').slice(0, 16)}`)
  await mkdir(short, { recursive: true, mode: 0o700 })
  // Every user can write to the parent directory and could have created this one first.
  const { uid, mode } = await stat(short)
  if (uid !== process.getuid?.() || (mode & 0o077) !== 0) {
    throw new Error(`${short} must belong to this user alone; remove it, or use a shorter data directory than ${dir}`)
  }
  return short
}

async function launch(command: string, args: string[], logFile: string, signal?: AbortSignal): Promise<Process> {
  signal?.throwIfAborted()
  const log = await open(logFile, 'a', 0o600)
  try {
    const [program, programArgs] = asUnprivileged(...withParentDeathSignal('SIGINT', command, args))
    const child = spawn(program, programArgs, {
      stdio: ['ignore', log.fd, log.fd],
      detached: true,
      env: Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith('PG'))),
      killSignal: 'SIGINT',
      signal,
    })
    const exited = new Promise<number | null>((resolve) => child.once('exit', resolve))
    await new Promise<void>((resolve, reject) => {
      child.once('spawn', resolve)
      child.once('error', (error) => reject(new Error(`failed to run ${program}`, { cause: error })))
    })
    return { child, exited }
  } finally {
    await log.close()
  }
}

async function untilReady(url: string, exited: Promise<unknown>, signal?: AbortSignal): Promise<void> {
  let ended = false
  void exited.then(() => {
    ended = true
  })
  let last: unknown
  for (let deadline = Date.now() + SILENCE_LIMIT_MS; Date.now() < deadline; await delay(10)) {
    signal?.throwIfAborted()
    if (ended) throw new Error('the server exited', { cause: last })
    const client = new pg.Client({ connectionString: url, connectionTimeoutMillis: 5_000 })
    client.on('error', () => {}) // The server may end between two attempts; the next attempt reports it.
    try {
      await client.connect()
      await client.query('select 1')
      return
    } catch (error) {
      last = error
      // After a crash the server replays its log, for which there is no time limit.
      if ((error as { code?: string }).code === STARTING_UP) deadline = Date.now() + SILENCE_LIMIT_MS
    } finally {
      await client.end().catch(() => {})
    }
  }
  throw new Error(`no response within ${SILENCE_LIMIT_MS / 1000} s`, { cause: last })
}

async function tail(file: string): Promise<string> {
  const lines = (await readFile(file, 'utf8').catch(() => '')).trimEnd().split('\n')
  return [`The end of ${file}:`, ...lines.slice(-12).map((line) => `  ${line}`)].join('\n')
}
