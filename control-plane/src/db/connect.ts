/**
 * The connection pool of this process, with Kysely for most queries. Statements that are sent often are prepared (prepare.ts);
 * those of the hottest paths are also written by hand.
 */
import type { Log } from '@warren/kit/log'
import { watchPool } from '@warren/kit/postgres/connection'
import { Kysely, PostgresDialect, type Transaction } from 'kysely'
import pg from 'pg'
import { preparingClient } from './prepare.ts'
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
    Client: preparingClient(),
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
