/** Pages (spec 2.1, wire 1.3): limit 0 is the default, above the maximum is clamped. */
import { PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX, type Page, type PageQuery } from '@warren/protocol'

export function clampPage(query: PageQuery): { limit: number; offset: number } {
  return { limit: Math.min(query.limit || PAGE_LIMIT_DEFAULT, PAGE_LIMIT_MAX), offset: query.offset ?? 0 }
}

export function paged<Item>(data: Item[], of: { total: number; limit: number; offset: number }): Page<Item> {
  return { data, pagination: { total: of.total, limit: of.limit, offset: of.offset, count: data.length } }
}

/** For lists that live in memory. */
export function pageOf<Item>(items: readonly Item[], query: PageQuery): Page<Item> {
  const { limit, offset } = clampPage(query)
  return paged(items.slice(offset, offset + limit), { total: items.length, limit, offset })
}
