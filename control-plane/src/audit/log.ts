/**
 * Writes the audit log. Entries that are recorded at the same time share one insert. They have a separate connection, which
 * does not wait for the disk: an entry survives the death of this process, and is on the disk within a second.
 *
 * If the database is unreachable, entries wait in memory, and `record` does not fail: the call itself has already happened.
 */
import type { Log } from '@warren/kit/log'
import type { AuditActorKind, AuditOutcome } from '@warren/protocol'
import pg from 'pg'
import { type Database, watchPool } from '../db/connect.ts'

export type NewAuditEntry = {
  id: string
  at: Date
  user_id: string | null
  actor_kind: AuditActorKind
  actor: string
  credential: string | null
  action: string
  target: string | null
  outcome: AuditOutcome
  status: number | null
  code: string | null
  request_id: string | null
}

export type AuditLog = {
  /** Resolves when the entry is written, or when the first attempt has failed. */
  record(entry: NewAuditEntry): Promise<void>
  /** Writes what is waiting. */
  close(): Promise<void>
}

const RETRY_MS = 1_000
const WAITING_MAX = 10_000
const QUERY_LIMIT_MS = 5_000

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
    waiting = []
    waiters = []
    try {
      const values = COLUMNS.map((column) => entries.map((entry) => entry[column]))
      await pool.query({ name: 'insert-audit-log', text: INSERT, values })
    } catch (error) {
      log.warn({ err: error, entries: entries.length }, 'failed to write the audit log, retrying')
      keep(entries)
      retry ??= setTimeout(start, RETRY_MS).unref()
    }
    for (const resolve of done) resolve()
    flushing = undefined
    if (waiting.length > 0 && retry === undefined) start()
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
      waiting.push(entry)
      const written = new Promise<void>((resolve) => waiters.push(resolve))
      if (retry === undefined) start()
      else for (const resolve of waiters.splice(0)) resolve()
      return written
    },
    async close() {
      if (waiting.length > 0) start()
      await flushing
      clearTimeout(retry)
      await pool.end()
    },
  }
}
