/** Reading sandboxes. Ownership is part of every lookup: a foreign sandbox is an absent one. */
import { SANDBOX_ID_PATTERN, type SandboxListQuery } from '@warren/protocol'
import type { Database } from '../db/connect.ts'
import type { SandboxRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import type { SandboxCounts } from './count.ts'

/** `host(ip)` because inet prints a mask. */
const COLUMNS = `id, user_id, name, status, fence, status_reason, host_id, host(ip) as ip, shape, rootfs, region, vcpu,
  mem_mib, disk_mib, ingress_enabled, auto_pause_after_seconds, env_names, ssh_pubkeys, egress,
  bandwidth_quota_bytes, bandwidth_ingress_bytes, spawn_ms, forked_from, created_at, running_at, paused_at,
  last_resumed_at, destroyed_at`

const FIND = `select ${COLUMNS} from sandboxes where id = any($1)`
const LIST = `select ${COLUMNS} from sandboxes where user_id = $1
  order by created_at desc, id desc limit $2 offset $3`
const LIST_BY_STATUS = `select ${COLUMNS} from sandboxes where user_id = $1 and status = $4
  order by created_at desc, id desc limit $2 offset $3`

export async function findSandboxes(database: Database, ids: string[]): Promise<Map<string, SandboxRow>> {
  const rows = await database.named<SandboxRow>('find-sandboxes', FIND, [ids])
  return new Map(rows.map((row) => [row.id, row]))
}

const ID = new RegExp(SANDBOX_ID_PATTERN)

/** Anything that is not an id is absent; asked for, it could spoil the statement it shares with other requests. */
export async function findOwnSandbox(deps: Deps, userId: string, id: string): Promise<SandboxRow | undefined> {
  if (!ID.test(id)) return undefined
  const row = await deps.loaders.sandbox(id)
  return row?.user_id === userId ? row : undefined
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
      ? deps.database.named<SandboxRow>('list-sandboxes', LIST, [userId, limit, offset])
      : deps.database.named<SandboxRow>('list-sandboxes-by-status', LIST_BY_STATUS, [userId, limit, offset, status]),
  ])
  return { rows, total: totalOf(counts, status), limit, offset }
}

function totalOf(counts: SandboxCounts | undefined, status: SandboxListQuery['status']): number {
  if (counts === undefined) return 0
  return status === undefined ? Object.values(counts).reduce((sum, n) => sum + n, 0) : counts[status]
}
