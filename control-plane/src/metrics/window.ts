import { badField } from '@warren/kit/failure'
import { parseMetricsWindow, type UserMetricsQuery } from '@warren/protocol'
import type { Deps } from '../deps.ts'

/** The window of a request, or 400. */
export function getWindow(deps: Deps, query: UserMetricsQuery, defaultSpanMs: number): { from: Date; to: Date } {
  const window = parseMetricsWindow(query, defaultSpanMs, deps.now().getTime())
  if ('field' in window) throw badField({ [window.field]: window.text })
  return { from: new Date(window.fromMs), to: new Date(window.toMs) }
}
