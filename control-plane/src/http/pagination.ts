/** Pages of a list (docs/api.md#pagination). */
import { PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, type Page, type PageQuery } from '@warren/protocol'

/** A limit of 0 means the default, and one above the maximum is reduced to it. */
export function clampPage(query: PageQuery): { limit: number; offset: number } {
  return { limit: Math.min(query.limit || PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX), offset: query.offset ?? 0 }
}

export function paged<Item>(data: Item[], of: { total: number; limit: number; offset: number }): Page<Item> {
  return { data, pagination: { total: of.total, limit: of.limit, offset: of.offset, count: data.length } }
}

/** For lists that are in memory. */
export function pageOf<Item>(items: readonly Item[], query: PageQuery): Page<Item> {
  const { limit, offset } = clampPage(query)
  return paged(items.slice(offset, offset + limit), { total: items.length, limit, offset })
}
