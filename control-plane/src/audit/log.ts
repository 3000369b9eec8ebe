/**
 * Writes the audit log. Entries that are recorded at the same time share one insert. They have a separate connection, which
 * does not wait for the disk: an entry is on the disk within a second.
 *
 * `record` resolves when the insert has been sent, without waiting for its result: the database executes what it has received
 * also if this process is killed. So a call waits for its entry without paying for a round trip.
 *
 * If the database is unreachable, entries wait in memory, and `record` does not fail: the call itself has already happened.
 */
import type { Log } from '@warren/kit/log'
import { watchPool } from '@warren/kit/postgres/connection'
import type { Selectable } from 'kysely'
import pg from 'pg'
import type { Database } from '../db/connect.ts'
import type { Tables } from '../db/schema.ts'

export type NewAuditEntry = Selectable<Tables['audit_log']>

export type AuditLog = {
  /** Resolves when the entry has been sent to the database, or when the first attempt has failed. */
  record(entry: NewAuditEntry): Promise<void>
  /** Resolves when everything that was recorded before is written, or the first attempt has failed. For reads. */
  written(): Promise<void>
  /** Writes what is waiting. */
  close(): Promise<void>
}

const RETRY_MS = 1_000
const WAITING_MAX = 10_000
const QUERY_LIMIT_MS = 5_000
const TARGET_MAX_CHARACTERS = 128

const INSERT = `insert into audit_log
    (id, at, user_id, actor_kind, actor, credential, action, target, outcome, status, code, request_id)
  select * from unnest($1::text[], $2::timestamptz[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
    $8::text[], $9::text[], $10::int[], $11::text[], $12::text[])
  on conflict (id) do nothing`
const COLUMNS = [
  ...(['id', 'at', 'user_id', 'actor_kind', 'actor', 'credential'] as const),
  ...(['action', 'target', 'outcome', 'status', 'code', 'request_id'] as const),
]

export function createAuditLog({ url }: Pick<Database, 'url'>, log: Pick<Log, 'warn' | 'error'>): AuditLog {
  const pool = new pg.Pool({
    connectionString: url,
    max: 1,
    application_name: 'warren audit log',
    options: '-c synchronous_commit=off',
    connectionTimeoutMillis: QUERY_LIMIT_MS,
    query_timeout: QUERY_LIMIT_MS,
    idleTimeoutMillis: 60_000,
    allowExitOnIdle: true,
  })
  watchPool(pool, log)
  let waiting: NewAuditEntry[] = []
  let waiters: (() => void)[] = []
  let flushing: Promise<void> | undefined
  let retry: NodeJS.Timeout | undefined

  async function flush(): Promise<void> {
    const entries = waiting
    const done = waiters
    const resolveAll = () => done.forEach((resolve) => void resolve())
    waiting = []
    waiters = []
    try {
      await insert(entries, resolveAll)
    } catch (error) {
      if (isDataError(error)) await insertEach(entries)
      else {
        log.warn({ err: error, entries: entries.length }, 'failed to write the audit log, retrying')
        keep(entries)
        retry ??= setTimeout(start, RETRY_MS).unref()
      }
    }
    resolveAll()
    flushing = undefined
    if (waiting.length > 0 && retry === undefined) start()
  }

  async function insert(entries: NewAuditEntry[], onSent?: () => void): Promise<void> {
    const client = await pool.connect()
    try {
      const values = COLUMNS.map((column) => entries.map((entry) => entry[column]))
      const result = client.query({ name: 'insert-audit-log', text: INSERT, values })
      onSent?.()
      await result
      client.release()
    } catch (error) {
      client.release(!isDataError(error))
      throw error
    }
  }

  /** An entry that the database refuses is lost, but takes no other one with it and is not attempted for ever. */
  async function insertEach(entries: NewAuditEntry[]): Promise<void> {
    for (const entry of entries) {
      await insert([entry]).catch((error) => {
        if (isDataError(error)) log.error({ err: error, entry }, 'the database refused an audit log entry')
        else keep([entry])
      })
    }
    if (waiting.length > 0) retry ??= setTimeout(start, RETRY_MS).unref()
  }

  function keep(entries: NewAuditEntry[]): void {
    const lost = Math.max(0, entries.length + waiting.length - WAITING_MAX)
    if (lost > 0) log.error({ lost }, 'audit log entries are lost, because the database was unreachable for too long')
    waiting = [...entries, ...waiting].slice(lost)
  }

  /** At the end of this turn of the event loop, so that entries of the same turn are included. */
  function start(): void {
    clearTimeout(retry)
    retry = undefined
    flushing ??= new Promise((resolve) => setImmediate(resolve)).then(flush)
  }

  return {
    record(entry) {
      waiting.push({ ...entry, target: entry.target === null ? null : storableTarget(entry.target) })
      const written = new Promise<void>((resolve) => waiters.push(resolve))
      if (retry === undefined) start()
      else for (const resolve of waiters.splice(0)) resolve()
      return written
    },
    async written() {
      await flushing
      // Entries that came while that insert was running are in the next one.
      if (waiting.length > 0 && retry === undefined) start()
      await flushing
    },
    async close() {
      if (waiting.length > 0) start()
      await flushing
      clearTimeout(retry)
      await pool.end()
    },
  }
}

/** The request chooses the target. PostgreSQL stores no NUL and no half of a surrogate pair, and an index holds no long text. */
const storableTarget = (text: string): string =>
  text.replaceAll('\0', '').slice(0, TARGET_MAX_CHARACTERS).toWellFormed()

/** SQLSTATE classes of data exceptions, violated constraints and exceeded limits: a repetition would fail as well. */
const isDataError = (error: unknown): boolean =>
  error instanceof pg.DatabaseError && /^(22|23|54)/.test(error.code ?? '')
