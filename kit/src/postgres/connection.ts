/** What every program with a PostgreSQL pool needs: surviving lost connections, and telling those errors from others. */
import pg from 'pg'
import type { Log } from '../log.ts'

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
