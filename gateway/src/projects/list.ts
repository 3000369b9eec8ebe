import type { Deps } from '../deps.ts'

/** Newest first, without deleted ones. The answer spells the wallet as the request does, so that clients can compare it. */
export async function listProjects(deps: Deps, wallet: string) {
  const rows = await deps.db
    .selectFrom('gateway.projects')
    .selectAll()
    .where('wallet', '=', wallet.toLowerCase())
    .where('deleted_at', 'is', null)
    .orderBy('created_at', 'desc')
    .orderBy('id')
    .execute()
  const projects = rows.map((row) => ({
    id: row.id,
    name: row.unique_name,
    displayName: row.display_name,
    status: row.status as string,
    url: row.url,
    createdAt: row.created_at.toISOString(),
  }))
  return { wallet, count: projects.length, projects }
}
