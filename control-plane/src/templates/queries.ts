/** Queries for templates. Each one filters by owner, so another user's template is not found. */
import { notFound } from '@warren/kit/failure'
import type { PageQuery, TemplateGetQuery, TemplateView } from '@warren/protocol'
import { sql } from 'kysely'
import type { Db, Tx } from '../db/connect.ts'
import type { TemplateRow } from '../db/schema.ts'
import type { Deps } from '../deps.ts'
import { clampPage } from '../http/pagination.ts'
import { renderTime } from '../sandboxes/view.ts'

/** By id, or by name: the latest ready build of that name, or the latest if none is ready. */
export function findTemplate(db: Db | Tx, userId: string, idOrName: string): Promise<TemplateRow | undefined> {
  return selectTemplates(db, userId, idOrName)
    .orderBy(sql`status = 'ready'`, 'desc')
    .orderBy('created_at', 'desc')
    .orderBy('id', 'desc')
    .limit(1)
    .executeTakeFirst()
}

export async function getTemplate(db: Db | Tx, userId: string, idOrName: string): Promise<TemplateRow> {
  const row = await findTemplate(db, userId, idOrName)
  if (!row) throw notFound('template')
  return row
}

/** What `rootfs` and FROM accept. */
export async function findReadyTemplate(
  db: Db | Tx,
  userId: string,
  idOrName: string,
): Promise<TemplateRow | undefined> {
  const row = await findTemplate(db, userId, idOrName)
  return row?.status === 'ready' ? row : undefined
}

/** A name never looks like an id. */
const selectTemplates = (db: Db | Tx, userId: string, idOrName: string) =>
  db
    .selectFrom('templates')
    .selectAll()
    .where('user_id', '=', userId)
    .where('deleted_at', 'is', null)
    .where(idOrName.startsWith('tpl_') ? 'id' : 'name', '=', idOrName)

export async function getTemplateView(
  deps: Deps,
  userId: string,
  idOrName: string,
  { include }: TemplateGetQuery,
): Promise<TemplateView> {
  const row = await getTemplate(deps.db, userId, idOrName)
  return { ...viewTemplate(row), ...(include === 'dockerfile' ? { dockerfile: row.dockerfile } : {}) }
}

export async function listTemplates(
  deps: Deps,
  userId: string,
  query: PageQuery,
): Promise<{ templates: TemplateView[]; total: number; limit: number; offset: number }> {
  const { limit, offset } = clampPage(query)
  const own = deps.db.selectFrom('templates').where('user_id', '=', userId).where('deleted_at', 'is', null)
  const [rows, { total }] = await Promise.all([
    own.select(VIEWED).orderBy('created_at', 'desc').orderBy('id', 'desc').limit(limit).offset(offset).execute(),
    own.select((eb) => eb.fn.countAll<number>().as('total')).executeTakeFirstOrThrow(),
  ])
  return { templates: rows.map(viewTemplate), total, limit, offset }
}

/** Without the Dockerfile, which may be long. */
const VIEWED = [
  'id',
  'name',
  'base',
  'status',
  'ext4_size_bytes',
  'created_at',
  'built_at',
  'failure_reason',
] as const satisfies (keyof TemplateRow)[]

export const viewTemplate = (row: Pick<TemplateRow, (typeof VIEWED)[number]>): TemplateView => ({
  id: row.id,
  name: row.name,
  base: row.base,
  status: row.status,
  ext4_size_bytes: row.ext4_size_bytes,
  created_at: renderTime(row.created_at),
  built_at: row.built_at && renderTime(row.built_at),
  ...(row.failure_reason === null ? {} : { failure_reason: row.failure_reason }),
})
