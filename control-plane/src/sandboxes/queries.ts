/** Queries for sandboxes. Every lookup checks the owner: a sandbox of another user does not exist for the caller. */
import { isIPv4 } from 'node:net'
import { SANDBOX_ID_PATTERN, type SandboxListQuery } from '@warren/protocol'
import type { Database } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import type { SandboxCounts } from './count-by-status.ts'

/**
 * A row is read as one JSON value. V8 parses it five times as fast as `pg` parses thirty columns with their arrays and
 * timestamps, which would take most of the time of listing a page.
 */
const SELECT = 'select to_json(sandboxes) as row from sandboxes'

const FIND = `${SELECT} where id = any($1)`
/** The usual case. PostgreSQL plans it once, whereas it plans any(…) again for each list of ids. */
const FIND_ONE = `${SELECT} where id = $1`
const LIST = `${SELECT} where user_id = $1
  order by created_at desc, id desc limit $2 offset $3`
const LIST_BY_STATUS = `${SELECT} where user_id = $1 and status = $4
  order by created_at desc, id desc limit $2 offset $3`

export async function findSandboxes(database: Database, ids: string[]): Promise<Map<string, SandboxRow>> {
  const rows =
    ids.length === 1
      ? await selectRows(database, 'find-sandbox', FIND_ONE, ids)
      : await selectRows(database, 'find-sandboxes', FIND, [ids])
  return new Map(rows.map((row) => [row.id, row]))
}

const FIND_VERSIONS = 'select to_json(sandboxes) as row, xmin::text as version from sandboxes where id = any($1)'

/** With a version that changes whenever any column of the row is written. */
export async function findSandboxVersions(
  database: Database,
  ids: string[],
): Promise<Map<string, { row: SandboxRow; version: string }>> {
  const found = await database.named<{ row: JsonRow; version: string }>('find-sandbox-versions', FIND_VERSIONS, [ids])
  return new Map(found.map(({ row, version }) => [row.id, { row: parseRow(row), version }]))
}

const ID = new RegExp(SANDBOX_ID_PATTERN)

/**
 * Text that is not an id is not looked up: the loader batches the ids of several requests into one statement, and an
 * invalid one (with a NUL byte, for example) would fail it for all of them.
 */
export async function findOwnSandbox(deps: Deps, userId: string, id: string): Promise<SandboxRow | undefined> {
  if (!ID.test(id)) return undefined
  const row = await deps.loaders.sandbox(id)
  return row?.user_id === userId ? row : undefined
}

const FIND_BY_IP = `${SELECT}
  where ip = $1 and user_id = $2 and status not in ('destroyed', 'failed')`

/** Ignores sandboxes that have ended, because their addresses are reused. */
export async function findOwnSandboxByIp(deps: Deps, userId: string, ip: string): Promise<SandboxRow | undefined> {
  if (!isIPv4(ip)) return undefined
  const [row] = await selectRows(deps.database, 'find-sandbox-by-ip', FIND_BY_IP, [ip, userId])
  return row
}

export async function listSandboxes(
  deps: Deps,
  userId: string,
  query: SandboxListQuery,
): Promise<{ rows: SandboxRow[]; total: number; limit: number; offset: number }> {
  const { limit, offset } = clampPage(query)
  const { status } = query
  const [counts, rows] = await Promise.all([
    deps.loaders.sandboxCounts(userId),
    status === undefined
      ? selectRows(deps.database, 'list-sandboxes', LIST, [userId, limit, offset])
      : selectRows(deps.database, 'list-sandboxes-by-status', LIST_BY_STATUS, [userId, limit, offset, status]),
  ])
  return { rows, total: totalOf(counts, status), limit, offset }
}

function totalOf(counts: SandboxCounts | undefined, status: SandboxListQuery['status']): number {
  if (counts === undefined) return 0
  return status === undefined ? Object.values(counts).reduce((sum, n) => sum + n, 0) : counts[status]
}

type JsonRow = {
  [Column in keyof SandboxRow]: Date extends SandboxRow[Column] ? string | null : SandboxRow[Column]
}

async function selectRows(database: Database, name: string, text: string, values: unknown[]): Promise<SandboxRow[]> {
  const rows = await database.named<{ row: JsonRow }>(name, text, values)
  return rows.map(({ row }) => parseRow(row))
}

/** JSON has no timestamps. The type above makes the compiler check that each of them is parsed here. */
function parseRow(row: JsonRow): SandboxRow {
  return {
    ...row,
    created_at: new Date(row.created_at!), // Never null in the table.
    running_at: parseTime(row.running_at),
    paused_at: parseTime(row.paused_at),
    last_resumed_at: parseTime(row.last_resumed_at),
    destroyed_at: parseTime(row.destroyed_at),
    last_active_at: parseTime(row.last_active_at),
    status_since: new Date(row.status_since!), // Never null in the table.
  }
}

const parseTime = (text: string | null): Date | null => (text === null ? null : new Date(text))
