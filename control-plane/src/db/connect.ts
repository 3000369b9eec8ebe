/** One pool a process; Kysely on top of it, named statements beside it for the hot paths. */
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
  /** Runs a statement that the server has parsed before: half the cost of building it anew (platform 2.4). */
  named<Row extends pg.QueryResultRow>(name: string, text: string, values: unknown[]): Promise<Row[]>
  close(): Promise<void>
}

/** All our 64-bit numbers (bytes, micro-credits, counts) stay under 2^53. */
const TYPES = new pg.TypeOverrides()
TYPES.setTypeParser(pg.types.builtins.INT8, Number)
/** numeric appears only as the sum of bigints. */
TYPES.setTypeParser(pg.types.builtins.NUMERIC, Number)

/** A server that does not answer must become an error a client can retry, before its own 60 s are over. */
const CONNECT_LIMIT_MS = 5_000
const QUERY_LIMIT_MS = 30_000

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

/** A connection that breaks, idle or in use, is replaced by the pool; without listeners it would end the process. */
export function watchPool(pool: pg.Pool, log: Pick<Log, 'warn'>): void {
  const lost = (error: Error) => log.warn({ err: error }, 'lost a database connection')
  pool.on('error', lost)
  pool.on('connect', (client) => client.on('error', lost))
}

/** SQLSTATE classes that mean "the server is not there": connection, shutdown, start-up, too many clients. */
const UNREACHABLE_STATES = /^(08...|57P0[123]|53300)$/
const UNREACHABLE_ERRNO = /^(ECONNREFUSED|ECONNRESET|ENOENT|EPIPE|ETIMEDOUT|EHOSTUNREACH|ENOTFOUND|EAI_AGAIN)$/
/** `pg` gives these no code. */
const UNREACHABLE_TEXT =
  /Connection terminated|connection timeout|timeout exceeded when trying to connect|Query read timeout|not queryable/i

/** Every other upstream wraps its own failures, so a bare network error can only be the database's. */
export function isDatabaseUnreachable(error: unknown): boolean {
  if (!(error instanceof Error)) return false
  const { code } = error as { code?: unknown }
  if (typeof code !== 'string') return UNREACHABLE_TEXT.test(error.message)
  return (error instanceof pg.DatabaseError ? UNREACHABLE_STATES : UNREACHABLE_ERRNO).test(code)
}

/** PostgreSQL's text holds every character but NUL. */
export const isUnstorableText = (error: unknown): boolean =>
  error instanceof pg.DatabaseError && (error.code === '22021' || error.code === '22P05')
