/** The connection pool of this process, with Kysely for most queries and named statements for the hot paths. */
import type { Log } from '@warren/kit/log'
import { Kysely, PostgresDialect, type Transaction } from 'kysely'
import pg from 'pg'
import type { Tables } from './schema.ts'

export type Db = Kysely<Tables>
export type Tx = Transaction<Tables>

export type Database = {
  url: string
  pool: pg.Pool
  db: Db
  /** Runs a prepared statement, which costs about half of building and parsing it each time. */
  named<Row extends pg.QueryResultRow>(name: string, text: string, values: unknown[]): Promise<Row[]>
  close(): Promise<void>
}

/** All our 64-bit numbers (bytes, micro-credits, counts) stay under 2^53. */
const TYPES = new pg.TypeOverrides()
TYPES.setTypeParser(pg.types.builtins.INT8, Number)
/** `numeric` appears only as the sum of bigints. */
TYPES.setTypeParser(pg.types.builtins.NUMERIC, Number)

/** If the server does not respond, clients must get an error that they can retry, within their own timeout of 60 s. */
const CONNECT_LIMIT_MS = 5_000
const QUERY_LIMIT_MS = 30_000

/**
 * Our statements read what an index finds. Where the planner expects more, starting parallel workers and compiling expressions
 * would take longer than the statement.
 */
const SESSION_OPTIONS = '-c max_parallel_workers_per_gather=0 -c jit=off'

export function connectDatabase(
  url: string,
  log: Pick<Log, 'warn'>,
  options: { max?: number; queryLimitMs?: number } = {},
): Database {
  const queryLimitMs = options.queryLimitMs ?? QUERY_LIMIT_MS
  const pool = new pg.Pool({
    connectionString: url,
    max: options.max ?? 20,
    types: TYPES,
    application_name: 'warren',
    options: SESSION_OPTIONS,
    connectionTimeoutMillis: CONNECT_LIMIT_MS,
    query_timeout: queryLimitMs,
    statement_timeout: queryLimitMs,
    keepAlive: true,
  })
  watchPool(pool, log)
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
  return {
    url,
    pool,
    db,
    async named(name, text, values) {
      return (await pool.query({ name, text, values })).rows
    },
    close: () => db.destroy(),
  }
}

/** The pool replaces broken connections. Without these listeners their errors would end the process. */
export function watchPool(pool: pg.Pool, log: Pick<Log, 'warn'>): void {
  const logLoss = (error: Error) => log.warn({ err: error }, 'lost a database connection')
  pool.on('error', logLoss)
  pool.on('connect', (client) => client.on('error', logLoss))
}

/** SQLSTATE codes of an unreachable server: connection failures, shutdown, start-up, too many clients. */
const UNREACHABLE_STATES = /^(08...|57P0[123]|53300)$/
const UNREACHABLE_ERRNO = /^(ECONNREFUSED|ECONNRESET|ENOENT|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENOTFOUND|EAI_AGAIN)$/
/** Errors to which `pg` gives no code. */
const UNREACHABLE_TEXT =
  /Connection terminated|connection timeout|timeout exceeded when trying to connect|Query read timeout|not queryable/i

/** Calls to all other services wrap their errors, so a plain network error can only come from the database. */
export function isDatabaseUnreachable(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const { code } = error as { code?: unknown }
  if (typeof code !== 'string') return UNREACHABLE_TEXT.test(error.message)
  return (error instanceof pg.DatabaseError ? UNREACHABLE_STATES : UNREACHABLE_ERRNO).test(code)
}

/** PostgreSQL cannot store a NUL character in text. */
export const isUnstorableText = (error: unknown): boolean =>
  error instanceof pg.DatabaseError && (error.code === '22021' || error.code === '22P05')
