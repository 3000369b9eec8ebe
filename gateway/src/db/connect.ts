/** The connection pool of this process. Money is `bigint` everywhere, as the database returns it. */
import type { Log } from '@warren/kit/log'
import { watchPool } from '@warren/kit/postgres/connection'
import { Kysely, PostgresDialect, type Transaction } from 'kysely'
import pg from 'pg'
import type { Tables } from './schema.ts'

export type Db = Kysely<Tables>
export type Tx = Transaction<Tables>
export type Database = { url: string; pool: pg.Pool; db: Db; close(): Promise<void> }

const TYPES = new pg.TypeOverrides()
TYPES.setTypeParser(pg.types.builtins.INT8, BigInt)
/** `numeric` appears only as the sum of bigints. */
TYPES.setTypeParser(pg.types.builtins.NUMERIC, BigInt)

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
    application_name: 'warren gateway',
    connectionTimeoutMillis: CONNECT_LIMIT_MS,
    query_timeout: queryLimitMs,
    statement_timeout: queryLimitMs,
    keepAlive: true,
  })
  watchPool(pool, log)
  const db = new Kysely<Tables>({ dialect: new PostgresDialect({ pool }) })
  return { url, pool, db, close: () => db.destroy() }
}

/** A unique key was violated; `constraint` names it. */
export function violatedKey(error: unknown): string | undefined {
  return error instanceof pg.DatabaseError && error.code === '23505' ? error.constraint : undefined
}
