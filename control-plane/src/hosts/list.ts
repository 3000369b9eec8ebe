import type { HostView, PageQuery } from '@warren/protocol'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'

export async function listHosts(deps: Deps, query: PageQuery) {
  const { limit, offset } = clampPage(query)
  const [rows, { total }] = await Promise.all([
    deps.db
      .selectFrom('hosts')
      .selectAll()
      .orderBy('created_at', 'desc')
      .orderBy('id', 'desc')
      .limit(limit)
      .offset(offset)
      .execute(),
    deps.db
      .selectFrom('hosts')
      .select((eb) => eb.fn.countAll<number>().as('total'))
      .executeTakeFirstOrThrow(),
  ])
  const hosts = rows.map(
    (row): HostView => ({
      id: row.id,
      status: row.status,
      free_mib: row.mem_mib - row.reserved_mib,
      vm_count: row.vm_count,
      ...(row.rootfses.length > 0 ? { rootfses: row.rootfses } : {}),
    }),
  )
  return { hosts, total, limit, offset }
}
