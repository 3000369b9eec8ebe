/** The number of sandboxes of each status per user, from a table that database triggers maintain (migration 0001). */
import { SANDBOX_STATUSES, type SandboxStatus } from '@warren/protocol'
import type { Database } from '../db/connect.ts'

export type SandboxCounts = Record<SandboxStatus, number>

const COUNT = `select user_id, ${SANDBOX_STATUSES.join(', ')} from sandbox_counts where user_id = any($1)`

export async function countByStatus(database: Database, userIds: string[]): Promise<Map<string, SandboxCounts>> {
  const rows = await database.named<SandboxCounts & { user_id: string }>('count-sandboxes', COUNT, [userIds])
  return new Map(rows.map(({ user_id, ...counts }) => [user_id, counts]))
}
