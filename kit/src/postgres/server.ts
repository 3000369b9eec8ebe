/**
 * The embedded PostgreSQL, which is started and stopped with the service.
 *
 * Started by root, it runs in a jail as a separate user (../confine), to whom its folders are handed over first.
 *
 * Order of events: stop a server that a killed launcher left running. Create a missing data directory under a temporary
 * name and rename it, so that a killed initdb leaves no partial directory. Start the server in a separate session, so
 * that a Ctrl-C for the launcher does not reach it before its clients have stopped. It is ready when it answers a query.
 * When the start is aborted, everything that has been started is stopped first.
 */
import { type ChildProcess, spawn } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { chmod, chown, lstat, mkdir, mkdtemp, open, readdir, readFile, rename, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import path from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { isServiceId } from '../confine/check-ids.ts'
import { claimServiceIds } from '../confine/claim-ids.ts'
import { type Confinement, confine } from '../confine/confine.ts'
import { endProcesses, handOver } from '../confine/hand-over.ts'
import { databaseClientsGroup, type ServiceUser, serviceUser } from '../confine/services.ts'
import { syncFolder } from '../files.ts'
import { withParentDeathSignal } from '../parent-death-signal.ts'
import { type Binaries, findBinaries } from './binaries.ts'
import { LOGIN_FILES, LOGIN_SETTINGS } from './logins.ts'
import { findDirectoryId, findPostmaster, removeLocks, stopServer } from './stop-server.ts'

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
const MAX_CONNECTIONS = 200
/** One for each connection, and those that the server runs for itself. */
const PROCESSES_MAX = MAX_CONNECTIONS + 300
const SILENCE_LIMIT_MS = 60_000
/**
 * The server asks for none. One that was taken over could, and would get this instead of PGPASSWORD or of what ~/.pgpass of root
 * has for other servers.
 */
const NO_PASSWORD = 'none'
/** SQLSTATE cannot_connect_now: the server is running and still in recovery. */
const STARTING_UP = '57P03'

export async function startPostgres(
  options: {
    dir: string
    /** The data directory around it, whose ids it uses. By default the parent of `dir`. */
    dataDir?: string
    logFile: string
    /** False only for temporary databases of tests. */
    durable?: boolean
    /** In a jail: whether each service has its own role (logins.ts). Otherwise every client can be the superuser. */
    hasRoles?: boolean
  },
  signal?: AbortSignal,
): Promise<PostgresServer> {
  const dir = path.resolve(options.dir)
  const binaries = await findBinaries()
  const dataDir = path.resolve(options.dataDir ?? path.dirname(dir))
  for (const folder of [dataDir, path.dirname(dir)]) await mkdir(folder, { recursive: true, mode: 0o700 })
  await stopServer(dir, findDirectoryId(dir))
  const ids = await claimServiceIds(dataDir)
  const user = ids === undefined ? undefined : serviceUser(ids, 'postgres')
  if (user) await endProcesses(user)
  const socketDir = await makeSocketDir(dir, dataDir, ids)
  const hasRoles = user !== undefined && options.hasRoles === true
  const context = { binaries, user, hasRoles, logFile: options.logFile }
  await mkdir(path.dirname(options.logFile), { recursive: true, mode: 0o700 })
  if (!existsSync(path.join(dir, 'PG_VERSION'))) await initialise(context, dir, signal)
  else if (user) {
    await checkLinks(dir)
    await handOver(user, [dir])
  }

  await removeLocks(dir, path.join(socketDir, SOCKET_NAME))
  const id = findDirectoryId(dir)
  const args = ['-D', dir, '-k', socketDir, '-p', PORT, ...settings(options.durable ?? true, context)]
  const { child, exited } = await launch(context, binaries.postgres, args, [dir, socketDir])
  const stop = () => stopServer(dir, id, child.exitCode === null && child.signalCode === null ? child.pid : undefined)
  // Everything is in the URL, because PGPORT and similar variables are meant for another server.
  const url = `postgresql://postgres:${NO_PASSWORD}@/postgres?host=${encodeURIComponent(socketDir)}&port=${PORT}&sslmode=disable`
  try {
    await untilReady(url, exited, signal)
  } catch (error) {
    await stop()
    signal?.throwIfAborted()
    throw new Error(`PostgreSQL failed to start.\n${await tail(options.logFile)}`, { cause: error })
  }
  return { url, pid: (id && findPostmaster(id)) ?? child.pid!, exited: exited.then(() => {}), stop }
}

type Context = { binaries: Binaries; user: ServiceUser | undefined; hasRoles: boolean; logFile: string }

const settings = (durable: boolean, { user, hasRoles }: Context) =>
  Object.entries({
    listen_addresses: '',
    // In a jail its clients are other users. Who may connect is decided by the folder of the socket.
    unix_socket_permissions: user ? '0777' : '0700',
    ...(hasRoles ? LOGIN_SETTINGS : {}),
    max_connections: `${MAX_CONNECTIONS}`,
    shared_buffers: '128MB',
    timezone: 'UTC',
    fsync: durable ? 'on' : 'off',
    synchronous_commit: durable ? 'on' : 'off',
    full_page_writes: durable ? 'on' : 'off',
  }).flatMap(([name, value]) => ['-c', `${name}=${value}`])

async function initialise(context: Context, dir: string, signal?: AbortSignal): Promise<void> {
  const { binaries, user, logFile } = context
  const home = path.dirname(dir)
  await removePartial(dir)
  // A unique name: an initdb whose launcher was killed may still be writing to the previous one.
  const partial = await mkdtemp(`${dir}.new-`)
  const args = ['-D', partial, '-U', 'postgres', '-A', 'trust', '--locale=C.UTF-8', '-E', 'UTF8', '--no-instructions']
  try {
    if (user) await handOver(user, [partial])
    const { exited } = await launch(context, binaries.initdb, args, [partial], signal)
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

/** The server owns what is in its directory, so links in it are not followed for the server's jail. */
async function checkLinks(dir: string): Promise<void> {
  const tablespaces = (await readdir(path.join(dir, 'pg_tblspc')).catch(() => [])).map((name) => `pg_tblspc/${name}`)
  for (const name of ['pg_wal', ...tablespaces]) {
    if (!(await lstat(path.join(dir, name)).catch(() => undefined))?.isSymbolicLink()) continue
    throw new Error(
      `${path.join(dir, name)} is a link, which the jail of PostgreSQL does not show; ` +
        'mount that folder in its place (mount --bind), or put the whole database on the other volume',
    )
  }
}

async function removePartial(dir: string): Promise<void> {
  const names = await readdir(path.dirname(dir))
  for (const name of names.filter((one) => one.startsWith(`${path.basename(dir)}.new-`))) {
    await rm(path.join(path.dirname(dir), name), { recursive: true, force: true, maxRetries: 5 })
  }
}

/**
 * For an ordinary user, the database's own directory: only its owner can connect. In a jail, a folder in the data directory,
 * which other services can be given. In both cases a short path elsewhere, if that one is too long for a socket or PostgreSQL would
 * read it as a list.
 */
async function makeSocketDir(dir: string, dataDir: string, ids: number | undefined): Promise<string> {
  const wanted = ids === undefined ? dir : path.join(dataDir, 'postgres-socket')
  const isUsable = Buffer.byteLength(path.join(wanted, SOCKET_NAME)) <= SOCKET_PATH_MAX_BYTES && !/[,"]/.test(wanted)
  const hash = createHash('sha256').update(dir).digest('hex').slice(0, 16)
  const folder = isUsable ? wanted : path.join(tmpdir(), `warren-${hash}`)
  if (isUsable && ids === undefined) return folder
  const user = ids === undefined ? undefined : serviceUser(ids, 'postgres')
  if (!isUsable) await checkTemporaryFolder(folder, dir, user)
  await mkdir(folder, { recursive: true, mode: 0o700 })
  if (ids === undefined || user === undefined) return folder
  // In a data directory that was restored, copied or moved, it belongs to a user of the previous one.
  if (!(await lstat(folder)).isDirectory()) throw new Error(`${folder} is not a folder; remove it`)
  await chown(folder, user.uid, databaseClientsGroup(ids))
  await chmod(folder, 0o750)
  return folder
}

/** Every user can write to the folder for temporary files and could have created this one first. */
async function checkTemporaryFolder(folder: string, dir: string, user: ServiceUser | undefined): Promise<void> {
  await mkdir(folder, { mode: 0o700 }).catch((error: NodeJS.ErrnoException) => {
    if (error.code !== 'EEXIST') throw error
  })
  const found = await lstat(folder)
  // Of another one when the data directory had other ids.
  const isOfService = user !== undefined && (found.uid === user.uid || isServiceId(found.uid))
  const isOurs = found.isDirectory() && (found.uid === process.getuid?.() || isOfService)
  if (isOurs && (found.mode & 0o007) === 0) return
  throw new Error(`${folder} must belong to this user alone; remove it, or use a shorter data directory than ${dir}`)
}

/** `write` are the folders that it changes. */
export const postgresConfinement = (
  user: ServiceUser,
  read: string[],
  write: string[],
  texts: Confinement['texts'] = {},
): Confinement => ({ user, read, write, texts, network: false, processesMax: PROCESSES_MAX, deathSignal: 'INT' })

/** `write` are the folders that the program changes. */
async function launch(
  { binaries, user, hasRoles, logFile }: Context,
  command: string,
  args: string[],
  write: string[],
  signal?: AbortSignal,
): Promise<Process> {
  signal?.throwIfAborted()
  const log = await open(logFile, 'a', 0o600)
  try {
    const texts = hasRoles ? LOGIN_FILES : {}
    const [program, programArgs] = user
      ? confine(postgresConfinement(user, [binaries.root], write, texts), command, args)
      : withParentDeathSignal('SIGINT', command, args)
    const child = spawn(program, programArgs, {
      stdio: ['ignore', log.fd, log.fd],
      detached: true,
      env: renderEnv(process.env, user),
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

/** A server in a jail gets nothing that may be a secret of another program. */
const renderEnv = (env: NodeJS.ProcessEnv, user: ServiceUser | undefined): NodeJS.ProcessEnv =>
  Object.fromEntries(
    Object.entries(env).filter(([name]) => (user ? /^(PATH|TZ|LANG|LC_\w+)$/.test(name) : !name.startsWith('PG'))),
  )

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
