/** The root file systems: first-party images first, then those that operators imported. Disabled ones are not listed. */
import type { RootfsCatalog } from '@warren/protocol'
import type { Deps } from '../deps.ts'

export async function readRootfsCatalog(deps: Deps): Promise<RootfsCatalog> {
  const rows = await deps.db
    .selectFrom('rootfs')
    .selectAll()
    .where('enabled', '=', true)
    .orderBy('position')
    .orderBy('name')
    .execute()
  const entries = rows.map((row) => ({
    name: row.name,
    description: row.description,
    ...(row.deprecated ? { deprecated: true } : {}),
    ...(row.successor === null ? {} : { successor: row.successor }),
  }))
  return {
    rootfs: rows.map((row) => row.name),
    default: deps.config.defaultRootfs,
    ...(entries.length > 0 ? { entries } : {}),
  }
}
